"""What ran without the server's lock, while it could not be asked, is an event."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("lockapp", "0003_permission_to_ask_a_holder_to_let_go"),
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
                    ("degraded", "ran without the server"),
                    ("gap", "gap"),
                ],
                max_length=20,
                verbose_name="event",
            ),
        ),
    ]
