"""The latest holder of each lock that has claimed it in this database."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("lockapp", "0004_lock_event_kind_degraded"),
    ]

    operations = [
        migrations.CreateModel(
            name="Fence",
            fields=[
                (
                    "digest",
                    models.CharField(
                        editable=False, max_length=32, primary_key=True, serialize=False
                    ),
                ),
                ("name", models.CharField(max_length=255, verbose_name="lock")),
                ("engine", models.CharField(max_length=200, verbose_name="engine")),
                ("epoch", models.BigIntegerField(verbose_name="epoch")),
                ("fence", models.BigIntegerField(verbose_name="fence")),
                ("owner", models.CharField(editable=False, max_length=32)),
                ("claimed_at", models.DateTimeField(verbose_name="claimed at")),
            ],
            options={
                "verbose_name": "fence",
                "verbose_name_plural": "fences",
                "default_permissions": ("view",),
            },
        ),
    ]
