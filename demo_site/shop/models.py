"""What the shop remembers.

Nothing here prevents overselling, on purpose: the stock is a plain number that the checkout reads
and writes, as in many a shop. The unlocked door shows what comes of it, the locked one what a lock
changes.
"""

from django.db import models


class ProductQuerySet(models.QuerySet["Product"]):
    """Products and how they sell."""

    def with_sales(self) -> "ProductQuerySet":
        """Add ``sold``, the number of orders that exist, whatever the stock says."""
        return self.annotate(sold=models.Count("orders"))


class Product(models.Model):
    """Something that can run out: ``offered`` pieces ever, ``stock`` left as the shop sees it."""

    name = models.CharField(max_length=100, unique=True)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    offered = models.PositiveIntegerField()
    stock = models.PositiveIntegerField()

    sold: int  # by with_sales()

    objects = ProductQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return self.name

    @property
    def oversold(self) -> int:
        """How many buyers paid for something that does not exist. Needs ``with_sales()``."""
        return max(0, self.sold - self.offered)


class Buyer(models.Model):
    """Who orders. Not a login: the shop's subject is stock, not passwords."""

    name = models.CharField(max_length=100, unique=True)

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    """One paid order, with the door it came in by and the web process that served it."""

    class Door(models.TextChoices):
        LOCKED = "locked", "with the lock"
        UNLOCKED = "unlocked", "without a lock"

    product = models.ForeignKey(Product, on_delete=models.CASCADE, related_name="orders")
    buyer = models.ForeignKey(Buyer, on_delete=models.CASCADE, related_name="orders")
    door = models.CharField(max_length=8, choices=Door)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    payment_reference = models.CharField(max_length=40)
    web_process = models.PositiveIntegerField(help_text="Process id of the web server.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"Order {self.pk}: {self.product} for {self.buyer}"


class Report(models.Model):
    """One run of the nightly report: if two bodies ran, two rows are here."""

    orders = models.PositiveIntegerField()
    revenue = models.DecimalField(max_digits=12, decimal_places=2)
    task_id = models.CharField(max_length=50)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"Report of {self.started_at:%Y-%m-%d %H:%M:%S}: {self.orders} orders"


class SkippedCopy(models.Model):
    """A copy of a task that saw another one at work and stepped aside."""

    task = models.CharField(max_length=100)
    task_id = models.CharField(max_length=50)
    held_by = models.CharField("task that was at work", max_length=50, blank=True)
    skipped_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-pk"]
        verbose_name_plural = "skipped copies"

    def __str__(self) -> str:
        return f"{self.task} skipped at {self.skipped_at:%Y-%m-%d %H:%M:%S}"
