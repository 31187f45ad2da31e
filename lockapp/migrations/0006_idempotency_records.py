"""What was answered under each Idempotency-Key."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("lockapp", "0005_fences"),
    ]

    operations = [
        migrations.CreateModel(
            name="IdempotencyRecord",
            fields=[
                (
                    "digest",
                    models.CharField(
                        editable=False, max_length=40, primary_key=True, serialize=False
                    ),
                ),
                ("fingerprint", models.CharField(editable=False, max_length=40)),
                ("key", models.CharField(max_length=255, verbose_name="key")),
                ("method", models.CharField(max_length=20, verbose_name="method")),
                ("path", models.CharField(max_length=500, verbose_name="path")),
                ("status", models.PositiveSmallIntegerField(null=True, verbose_name="status")),
                ("headers", models.JSONField(default=dict, verbose_name="headers")),
                ("body", models.BinaryField(default=bytes, verbose_name="body")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
                ("expires_at", models.DateTimeField(verbose_name="expires at")),
            ],
            options={
                "verbose_name": "idempotency record",
                "verbose_name_plural": "idempotency records",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["expires_at"], name="lockapp_idempotency_expires")
                ],
            },
        ),
    ]
