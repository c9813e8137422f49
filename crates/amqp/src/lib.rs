//! AMQP 1.0 without I/O: codec, and connection, session and link state machines for both sides.
//!
//! Bytes in, bytes out. The broker and the Service Bus client add sockets, clocks and tasks.
//!
//! | to do this | use |
//! | --- | --- |
//! | run one side of a connection | [`Connection`], [`Config`], [`ConnectionEvent`] |
//! | look into a received message | [`Message`]: section bounds in one pass, the rest on demand |
//! | write a message, or a new head before a stored one | [`message::MessageWriter`], [`message::BatchBuilder`] |
//! | read and write management bodies, filters, properties | [`Value`], [`Map`], [`codec::RawValue`] (byte-exact) |
//! | name an error | [`Error`], [`condition`] |
//! | read or write single frames (probes, tests) | [`frame`], [`performative`], [`sasl`] |
//!
//! # How an owner runs a connection
//! In a loop: read into a `BytesMut`, [`Connection::feed`] it, take **all** events with [`Connection::poll_event`], give
//! commands, then write what [`Connection::take_output`] returns, once. Wake for [`Connection::next_deadline`] and call
//! [`Connection::on_tick`]. After [`ConnectionEvent::Closed`]: write the rest, then close the socket. Stop feeding while
//! [`Connection::output_len`] is large. Commands may be given at any time.
//!
//! Automatic: headers, SASL, open and begin of the replying side, heartbeats, session windows, splitting and
//! joining of multi-frame deliveries, `echo`, the replies to detach, end and close, joining of
//! consecutive dispositions. Up to the owner: replying to attaches, granting credit, sending within credit, replying to a drain with
//! [`Connection::drained`], settle.
//!
//! # Server
//! ```
//! use amqp::message::{Header, MessageWriter, annotation};
//! use amqp::{Config, Connection, DeliveryState, Error, ConnectionEvent, Map, Message, OutgoingDelivery, Role, ServerSasl, condition};
//! use bytes::{Bytes, BytesMut};
//! use std::time::Instant;
//!
//! fn serve(connection: &mut Connection, input: &mut BytesMut, now: Instant) -> Bytes {
//!     connection.feed(input, now);
//!     while let Some(event) = connection.poll_event() {
//!         // A command fails only if its link was detached meanwhile; the event for that follows.
//!         let _ = react(connection, event);
//!     }
//!     connection.take_output()
//! }
//!
//! fn react(connection: &mut Connection, event: ConnectionEvent) -> Result<(), amqp::CommandError> {
//!     match event {
//!         ConnectionEvent::AttachRequested { link, attach, .. } => match attach.role {
//!             // The client sends: we receive, with up to a thousand unsettled deliveries.
//!             Role::Sender if attach.target.as_ref().and_then(|target| target.address()) == Some("orders") => {
//!                 let mut reply = attach.reply();
//!                 reply.max_message_size = Some(262_144);
//!                 reply.properties = Some(Map::new().with(amqp::Symbol::from("com.microsoft:max-message-batch-size"), 262_144u64));
//!                 connection.accept_attach(link, reply)?;
//!                 connection.keep_credit(link, 1_000)
//!             }
//!             // The client receives from a session: the filter is echoed in the same form.
//!             Role::Receiver => connection.accept_attach(link, attach.reply()),
//!             Role::Sender => connection.refuse_attach(link, Error::new(condition::NOT_FOUND, "no such entity")),
//!         },
//!         ConnectionEvent::Delivery(delivery) => {
//!             let message = Message::parse(delivery.payload).expect("reject malformed messages");
//!             let session_id = message.properties().unwrap().group_id.map(str::to_owned);
//!             // ... store message.encoded(); when it is on disk:
//!             connection.dispose(delivery.link, delivery.id, delivery.id, true, Some(DeliveryState::Accepted))
//!         }
//!         ConnectionEvent::Credit { link, credit, drain } => {
//!             if credit > 0 {
//!                 let stored = Message::parse(Bytes::from_static(b"\x00\x53\x75\xa0\x02hi")).unwrap();
//!                 let mut head = BytesMut::new();
//!                 MessageWriter::new(&mut head).header(&Header { durable: Some(true), ..Header::default() }).message_annotations_over(
//!                     stored.message_annotations(),
//!                     &[annotation::SEQUENCE_NUMBER],
//!                     |map| {
//!                         map.put_long(annotation::SEQUENCE_NUMBER, 1);
//!                     },
//!                 );
//!                 let outgoing = OutgoingDelivery { tag: &[7; 16], token: 1, ..OutgoingDelivery::default() };
//!                 connection.transfer(link, outgoing, &[&head, &stored.after_annotations()])?;
//!             }
//!             if drain { connection.drained(link) } else { Ok(()) }
//!         }
//!         // The client settles what we sent; the tokens are those given to `transfer`. Reply with the same outcome.
//!         ConnectionEvent::Disposition(disposition) if !disposition.settled => {
//!             for delivery in &disposition.deliveries {
//!                 connection.dispose(disposition.link, delivery.id, delivery.id, true, disposition.state.clone())?;
//!             }
//!             Ok(())
//!         }
//!         _ => Ok(()),
//!     }
//! }
//!
//! # // the client of the next example
//! # use amqp::{Attach, ClientSasl, Source, Target};
//! # let now = Instant::now();
//! # let mut server = Connection::server(Config::default(), ServerSasl::default(), now);
//! # let mut client = Connection::pipelined_client(Config::default(), ClientSasl::Anonymous, now);
//! # let session = client.begin_session().unwrap();
//! # let receiver = client.attach(session, Attach::receiver("r", Source::at("orders"), Target::at("r"))).unwrap();
//! # client.set_credit(receiver, 1).unwrap();
//! # let mut to_server = BytesMut::from(&client.take_output()[..]);
//! # let mut to_client = BytesMut::from(&serve(&mut server, &mut to_server, now)[..]);
//! # client.feed(&mut to_client, now);
//! # let mut deliveries = 0;
//! # while let Some(event) = client.poll_event() { deliveries += matches!(event, ConnectionEvent::Delivery(_)) as u32 }
//! # assert_eq!(deliveries, 1);
//! ```
//!
//! # Client
//! ```
//! use amqp::message::{MessageWriter, Properties};
//! use amqp::{Attach, ClientSasl, Config, Connection, ConnectionEvent, OutgoingDelivery, Source, Target};
//! use bytes::BytesMut;
//! # use amqp::{DeliveryState, ServerSasl};
//! use std::time::Instant;
//!
//! let now = Instant::now();
//! let config = Config { container_id: "me".into(), hostname: Some("bus".into()), ..Config::default() };
//! let mut client = Connection::client(config, ClientSasl::Anonymous, now);
//! // No need to wait: commands given before the handshake are sent after it.
//! let session = client.begin_session()?;
//! let sender = client.attach(session, Attach::sender("s", Source::at("me"), Target::at("orders")))?;
//!
//! # let mut server = Connection::server(Config::default(), ServerSasl::default(), now);
//! # let mut answer = |bytes: &[u8]| {
//! #     server.feed(&mut BytesMut::from(bytes), now);
//! #     while let Some(event) = server.poll_event() {
//! #         match event {
//! #             ConnectionEvent::AttachRequested { link, attach, .. } => {
//! #                 server.accept_attach(link, attach.reply()).unwrap();
//! #                 server.keep_credit(link, 10).unwrap();
//! #             }
//! #             ConnectionEvent::Delivery(d) => server.dispose(d.link, d.id, d.id, true, Some(DeliveryState::Accepted)).unwrap(),
//! #             _ => {}
//! #         }
//! #     }
//! #     server.take_output()
//! # };
//! let mut accepted = None;
//! while accepted.is_none() {
//!     let bytes = client.take_output();          // write these to the socket
//!     let mut input = BytesMut::new();           // and read into this
//!     # input.extend_from_slice(&answer(&bytes));
//!     client.feed(&mut input, now);
//!     while let Some(event) = client.poll_event() {
//!         match event {
//!             ConnectionEvent::Credit { link, credit, .. } if credit > 0 && link == sender => {
//!                 let mut message = BytesMut::new();
//!                 MessageWriter::new(&mut message)
//!                     .properties(&Properties { message_id: Some("id-1".into()), ..Properties::default() })
//!                     .data(b"hello");
//!                 client.transfer(sender, OutgoingDelivery { tag: b"1", token: 42, ..OutgoingDelivery::default() }, &[&message])?;
//!             }
//!             ConnectionEvent::Disposition(disposition) => accepted = Some(disposition.deliveries[0].token),
//!             ConnectionEvent::Detached { error, .. } => panic!("refused: {error:?}"),
//!             ConnectionEvent::Closed { error, .. } => panic!("closed: {error:?}"),
//!             _ => {}
//!         }
//!     }
//! }
//! assert_eq!(accepted, Some(42));
//! # Ok::<_, amqp::CommandError>(())
//! ```

pub mod codec;
pub mod condition;
pub mod connection;
pub mod frame;
pub mod message;
pub mod performative;
pub mod sasl;
mod symbol;
pub mod value;

pub use connection::{
    ClientSasl, CommandError, Config, Connection, ConnectionEvent, Delivery, DeliveryRef, DispositionEvent, LinkId,
    OutgoingDelivery, PlainVerifier, ServerSasl, SessionId,
};
pub use message::Message;
pub use performative::{Attach, DeliveryState, Error, Role, Source, Target};
pub use symbol::Symbol;
pub use value::{Array, Described, ElementType, Map, Value};
