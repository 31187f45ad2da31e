"""The shop's addresses."""

from django.urls import path

from demo_site.shop import views

app_name = "shop"
urlpatterns = [
    path("", views.home, name="home"),
    path("orders/", views.create_order, name="order"),
    path("orders/unlocked/", views.create_order_unlocked, name="order-unlocked"),
    path("reports/", views.send_reports, name="reports"),
    path("health/", views.health, name="health"),
]
