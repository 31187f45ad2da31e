"""One row for each lease, from its grant to its end; cursors that tell of an end in order."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("lockapp", "0006_idempotency_records"),
    ]

    operations = [
        migrations.CreateModel(
            name="LockHold",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("alias", models.CharField(max_length=100, verbose_name="engine")),
                (
                    "kind",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("mutex", "lock"),
                            ("semaphore", "semaphore"),
                            ("read", "read"),
                            ("write", "write"),
                        ],
                        max_length=10,
                        verbose_name="kind",
                    ),
                ),
                ("name", models.CharField(max_length=255, verbose_name="lock")),
                ("name_digest", models.CharField(editable=False, max_length=32)),
                ("family", models.CharField(blank=True, max_length=200, verbose_name="family")),
                ("fence", models.BigIntegerField(verbose_name="fence")),
                ("host", models.CharField(blank=True, max_length=255, verbose_name="host")),
                ("pid", models.CharField(blank=True, max_length=20, verbose_name="process")),
                ("task", models.CharField(blank=True, max_length=255, verbose_name="task")),
                ("task_id", models.CharField(blank=True, max_length=255, verbose_name="task id")),
                ("user", models.CharField(blank=True, max_length=255, verbose_name="user")),
                ("path", models.CharField(blank=True, max_length=500, verbose_name="path")),
                ("granted_at", models.DateTimeField(verbose_name="granted at")),
                ("ended_at", models.DateTimeField(blank=True, null=True, verbose_name="ended at")),
                (
                    "ended",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("", "no end recorded"),
                            ("released", "released"),
                            ("expired", "expired"),
                            ("forced", "taken away"),
                            ("abandoned", "abandoned"),
                        ],
                        max_length=20,
                        verbose_name="end",
                    ),
                ),
                ("actor", models.CharField(blank=True, max_length=200, verbose_name="by")),
                ("reason", models.TextField(blank=True, verbose_name="reason")),
                ("ttl_ms", models.BigIntegerField(blank=True, null=True, verbose_name="ttl (ms)")),
                (
                    "waited_ms",
                    models.BigIntegerField(blank=True, null=True, verbose_name="waited (ms)"),
                ),
                (
                    "held_ms",
                    models.BigIntegerField(blank=True, null=True, verbose_name="held (ms)"),
                ),
            ],
            options={
                "verbose_name": "lock hold",
                "verbose_name_plural": "lock holds",
                "ordering": ["-granted_at", "-id"],
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["granted_at", "id"], name="lockapp_hold_at"),
                    models.Index(fields=["family", "granted_at", "id"], name="lockapp_hold_family"),
                    models.Index(fields=["ended", "granted_at", "id"], name="lockapp_hold_ended"),
                    models.Index(fields=["kind", "granted_at", "id"], name="lockapp_hold_kind"),
                    models.Index(fields=["alias", "granted_at", "id"], name="lockapp_hold_alias"),
                    models.Index(
                        fields=["name"], name="lockapp_hold_name", opclasses=["varchar_pattern_ops"]
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("name_digest", "fence", "alias"), name="lockapp_hold_lease"
                    )
                ],
            },
        ),
        migrations.AddField(
            model_name="eventcursor",
            name="ended",
            field=models.BooleanField(default=False),
        ),
    ]
