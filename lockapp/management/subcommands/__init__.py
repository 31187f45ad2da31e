"""What comes after ``manage.py lockapp``: one class for each word."""
