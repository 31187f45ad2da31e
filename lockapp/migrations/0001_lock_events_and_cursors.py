"""The audit log and how far it has been read."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="EventCursor",
            fields=[
                ("key", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("alias", models.CharField(max_length=100, verbose_name="engine")),
                ("shard", models.PositiveIntegerField(default=0, verbose_name="shard")),
                ("server", models.CharField(blank=True, max_length=64, verbose_name="server")),
                (
                    "stream_id",
                    models.CharField(default="0-0", max_length=41, verbose_name="stream id"),
                ),
                ("number", models.BigIntegerField(default=0, null=True, verbose_name="number")),
                ("version", models.BigIntegerField(default=0)),
                ("stored_at", models.DateTimeField(null=True, verbose_name="stored at")),
            ],
            options={
                "verbose_name": "event cursor",
                "verbose_name_plural": "event cursors",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="LockEvent",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("identity", models.CharField(editable=False, max_length=48, unique=True)),
                ("alias", models.CharField(max_length=100, verbose_name="engine")),
                ("server", models.CharField(blank=True, max_length=64, verbose_name="server")),
                ("shard", models.PositiveIntegerField(default=0, verbose_name="shard")),
                (
                    "stream_id",
                    models.CharField(blank=True, max_length=41, verbose_name="stream id"),
                ),
                ("number", models.BigIntegerField(default=0, verbose_name="number")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("acquired", "acquired"),
                            ("released", "released"),
                            ("expired", "expired"),
                            ("forced", "taken away"),
                            ("abandoned", "abandoned"),
                            ("gap", "gap"),
                        ],
                        max_length=20,
                        verbose_name="event",
                    ),
                ),
                ("name", models.CharField(blank=True, max_length=255, verbose_name="lock")),
                ("name_digest", models.CharField(blank=True, editable=False, max_length=32)),
                ("family", models.CharField(blank=True, max_length=200, verbose_name="family")),
                ("fence", models.BigIntegerField(blank=True, null=True, verbose_name="fence")),
                ("at", models.DateTimeField(verbose_name="time")),
                ("actor", models.CharField(blank=True, max_length=200, verbose_name="by")),
                ("reason", models.TextField(blank=True, verbose_name="reason")),
                ("host", models.CharField(blank=True, max_length=255, verbose_name="host")),
                ("pid", models.CharField(blank=True, max_length=20, verbose_name="process")),
                ("task", models.CharField(blank=True, max_length=255, verbose_name="task")),
                ("task_id", models.CharField(blank=True, max_length=255, verbose_name="task id")),
                ("user", models.CharField(blank=True, max_length=255, verbose_name="user")),
                ("path", models.CharField(blank=True, max_length=500, verbose_name="path")),
                ("detail", models.JSONField(blank=True, default=dict, verbose_name="detail")),
            ],
            options={
                "verbose_name": "lock event",
                "verbose_name_plural": "lock events",
                "ordering": ["-at", "-id"],
                "permissions": [("force_release_lock", "Can take a lock away from its holder")],
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["-at", "-id"], name="lockapp_event_at"),
                    models.Index(fields=["name_digest", "fence"], name="lockapp_event_lock"),
                    models.Index(fields=["family", "-at"], name="lockapp_event_family"),
                ],
            },
        ),
        migrations.CreateModel(
            name="LiveLock",
            fields=[],
            options={
                "verbose_name": "live lock",
                "verbose_name_plural": "live locks",
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("lockapp.lockevent",),
        ),
    ]
