"""The shop at the top, the admin (with the live locks in it) under /admin/."""

from django.contrib import admin
from django.urls import include, path

admin.site.site_header = "lockapp demo shop"
admin.site.site_title = "lockapp demo"

urlpatterns = [
    path("", include("demo_site.shop.urls")),
    path("admin/", admin.site.urls),
]
