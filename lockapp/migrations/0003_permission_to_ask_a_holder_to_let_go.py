"""Who may ask a holder to let go need not be one who may take the lock away."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("lockapp", "0002_lock_event_kinds_downgraded_and_revoked"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="lockevent",
            options={
                "default_permissions": ("view",),
                "ordering": ["-at", "-id"],
                "permissions": [
                    ("force_release_lock", "Can take a lock away from its holder"),
                    ("revoke_lock", "Can ask the holder of a lock to let go"),
                ],
                "verbose_name": "lock event",
                "verbose_name_plural": "lock events",
            },
        ),
    ]
