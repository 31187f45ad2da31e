"""Orders, products and reports in the admin; the locks bring their own pages."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from demo_site.shop.models import Buyer, Order, Product, Report, SkippedCopy


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):
    """Stock as the shop believes it beside the orders that exist."""

    list_display = ["name", "price", "offered", "stock", "sold", "oversold"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Product]:
        return Product.objects.with_sales()

    @admin.display(ordering="sold")
    def sold(self, product: Product) -> int:
        return product.sold

    @admin.display
    def oversold(self, product: Product) -> int:
        return product.oversold


@admin.register(Buyer)
class BuyerAdmin(admin.ModelAdmin):
    """Who buys."""

    search_fields = ["name"]


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    """What was sold, and by which door."""

    list_display = ["id", "product", "buyer", "door", "price", "web_process", "created_at"]
    list_filter = ["door", "product"]
    list_select_related = ["product", "buyer"]


@admin.register(Report)
class ReportAdmin(admin.ModelAdmin):
    """Each row is a body that ran."""

    list_display = ["id", "orders", "revenue", "started_at", "finished_at", "task_id"]


@admin.register(SkippedCopy)
class SkippedCopyAdmin(admin.ModelAdmin):
    """Each row is a body that did not run, and the one that ran instead."""

    list_display = ["task", "task_id", "held_by", "skipped_at"]
