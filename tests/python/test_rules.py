"""Rules of subscriptions with the official Python SDK: SQL and correlation filters, actions, counts, restarts."""

import datetime

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.management import (
    CorrelationRuleFilter, FalseRuleFilter, ServiceBusAdministrationClient, SqlRuleAction, SqlRuleFilter,
    TrueRuleFilter)

from broker_process import Broker
from conftest import unique

SUBSCRIPTION = "sub0"


@pytest.fixture
def make_ruled_topic(admin, make_topic):
    """A topic whose subscription has only the given rules."""
    def make(**rules):
        topic = make_topic()
        admin.delete_rule(topic, SUBSCRIPTION, "$Default")
        for name, rule in rules.items():
            admin.create_rule(topic, SUBSCRIPTION, name, **rule)
        return topic
    return make


def publish(client, topic, *messages):
    with client.get_topic_sender(topic) as sender:
        sender.send_messages(list(messages))


def message(body, **properties):
    return ServiceBusMessage(body, application_properties=properties)


def receive_all(client, topic, sub_queue=None):
    """Everything that is there."""
    got = []
    with client.get_subscription_receiver(topic, SUBSCRIPTION, sub_queue=sub_queue) as receiver:
        while batch := receiver.receive_messages(50, max_wait_time=2):
            for received in batch:
                got.append(received)
                receiver.complete_message(received)
    return got


def values(received):
    return {name.decode(): value.decode() if isinstance(value, bytes) else value
            for name, value in (received.application_properties or {}).items()}


def test_a_sql_filter_selects(client, make_ruled_topic):
    topic = make_ruled_topic(few={"filter": SqlRuleFilter("color = 'red' AND quantity < 10 OR sys.Label LIKE '%bus%'")})
    publish(client, topic, message("a", color="red", quantity=5), message("b", color="red", quantity=10),
            ServiceBusMessage("c", subject="service bus"), ServiceBusMessage("d"))
    assert [str(got) for got in receive_all(client, topic)] == ["a", "c"]


def test_parameters_have_their_types(client, make_ruled_topic):
    parameters = {"@color": "red", "@count": 5, "@price": 1.5, "@loud": True,
                  "@when": datetime.datetime(2026, 1, 2, 3, 4, 5)}
    expression = "color = @color AND count = @count AND price = @price AND loud = @loud AND moment = @when"
    topic = make_ruled_topic(typed={"filter": SqlRuleFilter(expression, parameters=parameters)})
    sent = {"color": "red", "count": 5, "price": 1.5, "loud": True,
            "moment": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)}
    publish(client, topic, message("yes", **sent), message("no", **{**sent, "count": 6}))
    assert [str(got) for got in receive_all(client, topic)] == ["yes"]


def test_a_correlation_filter_selects(client, make_ruled_topic):
    topic = make_ruled_topic(
        orders={"filter": CorrelationRuleFilter(label="order", properties={"region": "eu", "priority": 1})},
        answers={"filter": CorrelationRuleFilter(correlation_id="c1")})
    publish(client, topic,
            ServiceBusMessage("a", subject="order", application_properties={"region": "eu", "priority": 1}),
            ServiceBusMessage("b", subject="order", application_properties={"region": "us", "priority": 1}),
            ServiceBusMessage("c", correlation_id="c1"), ServiceBusMessage("d", correlation_id="C1"))
    assert [str(got) for got in receive_all(client, topic)] == ["a", "c"]


def test_boolean_filters_select_all_or_nothing(client, make_ruled_topic):
    topic = make_ruled_topic(none={"filter": FalseRuleFilter()})
    publish(client, topic, ServiceBusMessage("a"))
    assert receive_all(client, topic) == []
    topic = make_ruled_topic(none={"filter": FalseRuleFilter()}, every={"filter": TrueRuleFilter()})
    publish(client, topic, ServiceBusMessage("a"))
    assert [str(got) for got in receive_all(client, topic)] == ["a"]


def test_five_matching_rules_of_which_two_have_actions_make_three_messages(client, make_ruled_topic):
    topic = make_ruled_topic(
        plain1={"filter": TrueRuleFilter()}, plain2={"filter": SqlRuleFilter("quantity = 10")},
        plain3={"filter": SqlRuleFilter("color = 'red'")},
        half={"filter": SqlRuleFilter("color = 'red'"), "action": SqlRuleAction("SET quantity = quantity / 2;")},
        tidy={"filter": TrueRuleFilter(),
              "action": SqlRuleAction("REMOVE color; SET sys.Label = 'tidy'; SET added = 'a' + 1")})
    publish(client, topic, message("a", color="red", quantity=10))
    got = receive_all(client, topic)
    assert [str(each) for each in got] == ["a", "a", "a"]
    assert [values(each) for each in got] == [
        {"color": "red", "quantity": 10},
        {"color": "red", "quantity": 5, "RuleName": "half"},
        {"quantity": 10, "RuleName": "tidy", "added": "a1"}]
    assert [each.subject for each in got] == [None, None, "tidy"]
    assert len({each.sequence_number for each in got}) == 3


def test_a_filter_that_fails_dead_letters_the_message(client, make_ruled_topic):
    topic = make_ruled_topic(broken={"filter": SqlRuleFilter("quantity / 0 = 1")})
    publish(client, topic, message("a", quantity=10))
    assert receive_all(client, topic) == []
    [dead] = receive_all(client, topic, ServiceBusSubQueue.DEAD_LETTER)
    assert dead.dead_letter_reason == "FilterEvaluationException"


def test_rules_are_created_read_updated_listed_and_deleted(admin, make_topic):
    topic = make_topic()
    admin.create_rule(topic, SUBSCRIPTION, "sql", filter=SqlRuleFilter("a = @p", parameters={"@p": 1}),
                      action=SqlRuleAction("SET b = 2"))
    admin.create_rule(topic, SUBSCRIPTION, "correlated", filter=CorrelationRuleFilter(label="l", properties={"n": 1}))
    rule = admin.get_rule(topic, SUBSCRIPTION, "sql")
    assert (rule.filter.sql_expression, rule.filter.parameters) == ("a = @p", {"@p": 1})
    assert rule.action.sql_expression == "SET b = 2"
    assert [each.name for each in admin.list_rules(topic, SUBSCRIPTION)] == ["$Default", "correlated", "sql"]
    properties = admin.get_topic(topic)._internal_td
    assert (properties.sql_filter_count, properties.correlation_filter_count) == (2, 1)
    rule.filter = SqlRuleFilter("a = 3")
    admin.update_rule(topic, SUBSCRIPTION, rule)
    assert admin.get_rule(topic, SUBSCRIPTION, "sql").filter.sql_expression == "a = 3"
    with pytest.raises(ResourceExistsError):
        admin.create_rule(topic, SUBSCRIPTION, "SQL", filter=TrueRuleFilter())
    admin.delete_rule(topic, SUBSCRIPTION, "sql")
    with pytest.raises(ResourceNotFoundError):
        admin.get_rule(topic, SUBSCRIPTION, "sql")
    with pytest.raises(ResourceNotFoundError):
        admin.delete_rule(topic, SUBSCRIPTION, "sql")


def test_an_expression_with_an_error_is_refused_with_its_position(admin, make_topic):
    topic = make_topic()
    with pytest.raises(HttpResponseError, match="at character 5") as refused:
        admin.create_rule(topic, SUBSCRIPTION, "wrong", filter=SqlRuleFilter("a = )"))
    assert refused.value.status_code == 400
    assert [each.name for each in admin.list_rules(topic, SUBSCRIPTION)] == ["$Default"]


def test_rules_survive_a_restart(tmp_path):
    topic = unique("topic")

    def administrate(broker):
        admin = ServiceBusAdministrationClient.from_connection_string(broker.connection_string)
        admin._impl._client._base_url = f"http://{broker.address}"
        return admin

    broker = Broker("--data-dir", str(tmp_path))
    admin = administrate(broker)
    admin.create_topic(topic)
    admin.create_subscription(topic, SUBSCRIPTION)
    admin.delete_rule(topic, SUBSCRIPTION, "$Default")
    admin.create_rule(topic, SUBSCRIPTION, "red", filter=SqlRuleFilter("color = 'red'"),
                      action=SqlRuleAction("SET seen = TRUE"))
    broker.process.kill()
    broker.process.wait(timeout=20)
    broker = Broker("--data-dir", str(tmp_path))
    try:
        assert [each.name for each in administrate(broker).list_rules(topic, SUBSCRIPTION)] == ["red"]
        with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
            publish(client, topic, message("a", color="red"), message("b", color="blue"))
            [got] = receive_all(client, topic)
            assert values(got) == {"color": "red", "seen": True, "RuleName": "red"}
    finally:
        broker.stop()
