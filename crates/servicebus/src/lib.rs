//! A client for Azure Service Bus sessions and topics.
