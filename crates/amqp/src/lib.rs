//! AMQP 1.0 without I/O: codec, and connection, session and link state machines for both sides.
