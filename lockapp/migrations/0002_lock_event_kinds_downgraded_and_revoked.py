"""A writer that becomes a reader, and a holder that is asked to let go, are events."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("lockapp", "0001_lock_events_and_cursors"),
    ]

    operations = [
        migrations.AlterField(
            model_name="lockevent",
            name="kind",
            field=models.CharField(
                choices=[
                    ("acquired", "acquired"),
                    ("released", "released"),
                    ("downgraded", "downgraded"),
                    ("revoked", "asked to let go"),
                    ("expired", "expired"),
                    ("forced", "taken away"),
                    ("abandoned", "abandoned"),
                    ("gap", "gap"),
                ],
                max_length=20,
                verbose_name="event",
            ),
        ),
    ]
