"""The shop as a Django application."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Named, so that its tables are called shop_… wherever the demo lies."""

    name = "demo_site.shop"
    label = "shop"
    default_auto_field = "django.db.models.BigAutoField"
