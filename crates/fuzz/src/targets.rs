//! The table of targets.

mod amqp_bytes;
mod data_folder;
mod events;
mod read_models;
mod sockets;
mod text;
mod tokens;

use amqp::message::{Header, MessageWriter, Properties};
use bytes::BytesMut;

/// Something that reads bytes from outside.
pub struct FuzzTarget {
    pub name: &'static str,
    /// What it reads, and from whom.
    pub reads: &'static str,
    /// Good inputs, from which mutations reach deeper than from noise.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Pieces that mean something to the parser.
    pub dictionary: &'static [&'static [u8]],
    /// Must return on any input.
    pub run: fn(&[u8]),
}

pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget {
        name: "amqp-types",
        reads: "values of the AMQP type system",
        seeds: || vec![vec![0xd1, 0, 0, 0, 8, 0, 0, 0, 2, 0xa1, 1, b'a', 0x54, 1], vec![0x00, 0x53, 0x70, 0xc0, 1, 0]],
        dictionary: AMQP_CODES,
        run: amqp_bytes::types,
    },
    FuzzTarget {
        name: "amqp-frames",
        reads: "frames of any peer",
        seeds: sockets::amqp_conversations,
        dictionary: AMQP_CODES,
        run: amqp_bytes::frames,
    },
    FuzzTarget {
        name: "amqp-messages",
        reads: "messages of any sender",
        seeds: || [events::envelopes(), vec![small_message()]].concat(),
        dictionary: AMQP_CODES,
        run: amqp_bytes::messages,
    },
    FuzzTarget {
        name: "amqp-server",
        reads: "a whole conversation, in any chunks",
        seeds: || {
            sockets::amqp_conversations()
                .into_iter()
                .flat_map(|talk| [[vec![3], talk.clone()].concat(), [vec![64], talk].concat()])
                .collect()
        },
        dictionary: AMQP_CODES,
        run: amqp_bytes::server,
    },
    FuzzTarget {
        name: "envelope",
        reads: "the properties and the body of a message, as a consumer",
        seeds: events::envelopes,
        dictionary: events::NAMES,
        run: events::read_envelope,
    },
    FuzzTarget {
        name: "bson-bodies",
        reads: "the BSON document of an event, in every update operator",
        seeds: events::documents,
        dictionary: events::NAMES,
        run: events::project_document,
    },
    FuzzTarget {
        name: "read-models",
        reads: "the declaration of a read model",
        seeds: read_models::declarations,
        dictionary: read_models::WORDS,
        run: read_models::compile,
    },
    FuzzTarget {
        name: "atom",
        reads: "ATOM entries of the administration API",
        seeds: text::atom_entries,
        dictionary: text::ATOM_WORDS,
        run: text::parse_atom,
    },
    FuzzTarget {
        name: "emulator-config",
        reads: "the entity file of the broker",
        seeds: text::emulator_configs,
        dictionary: text::JSON_WORDS,
        run: text::parse_emulator_config,
    },
    FuzzTarget {
        name: "rules",
        reads: "SQL filters and actions of rules",
        seeds: text::rule_expressions,
        dictionary: text::RULE_WORDS,
        run: text::compile_rule,
    },
    FuzzTarget {
        name: "connection-string",
        reads: "connection strings",
        seeds: text::connection_strings,
        dictionary: text::CONNECTION_WORDS,
        run: text::parse_connection_string,
    },
    FuzzTarget {
        name: "http-heads",
        reads: "requests to the admin server, over a socket",
        seeds: sockets::http_requests,
        dictionary: sockets::HTTP_WORDS,
        run: sockets::send_to_admin,
    },
    FuzzTarget {
        name: "broker-port",
        reads: "the port of the broker: AMQP, HTTP, WebSocket, TLS or anything else, over a socket",
        seeds: || [sockets::amqp_conversations(), sockets::http_requests()].concat(),
        dictionary: sockets::HTTP_WORDS,
        run: sockets::send_to_broker,
    },
    FuzzTarget {
        name: "page-requests",
        reads: "requests to the broker's page, with its token, over a socket",
        seeds: sockets::page_requests,
        dictionary: sockets::PAGE_WORDS,
        run: sockets::send_to_page,
    },
    FuzzTarget {
        name: "jwts",
        reads: "tokens of clients of the broker: JWTs and shared access signatures",
        seeds: tokens::tokens,
        dictionary: tokens::TOKEN_WORDS,
        run: tokens::verify_token,
    },
    FuzzTarget {
        name: "token-replies",
        reads: "replies of token endpoints, as a client",
        seeds: tokens::replies,
        dictionary: tokens::REPLY_WORDS,
        run: tokens::read_reply,
    },
    FuzzTarget {
        name: "proxy-replies",
        reads: "replies of proxies to CONNECT, as a client",
        seeds: tokens::proxy_replies,
        dictionary: tokens::PROXY_WORDS,
        run: tokens::read_proxy_reply,
    },
    FuzzTarget {
        name: "journal-records",
        reads: "records of the broker's journal",
        seeds: data_folder::records,
        dictionary: &[],
        run: data_folder::replay_record,
    },
    FuzzTarget {
        name: "store-recovery",
        reads: "a damaged data folder of the broker",
        seeds: data_folder::damages,
        dictionary: &[],
        run: data_folder::recover,
    },
];

/// Targets with a defect on purpose: they show that a finding fails a run. No run includes them unless it names them.
const PLANTED: &[FuzzTarget] = &[
    FuzzTarget {
        name: "planted-panic",
        reads: "nothing: panics on some inputs",
        seeds: || vec![b"seed".to_vec()],
        dictionary: &[],
        run: |data| assert!(data.first() == Some(&b's'), "planted panic"),
    },
    FuzzTarget {
        name: "planted-abort",
        reads: "nothing: ends the process on some inputs",
        seeds: || vec![b"seed".to_vec()],
        dictionary: &[],
        run: |data| {
            if data.first() != Some(&b's') {
                std::process::abort();
            }
        },
    },
];

/// A target by its name, planted defects included.
pub fn find_target(name: &str) -> Option<&'static FuzzTarget> {
    TARGETS.iter().chain(PLANTED).find(|target| target.name == name)
}

/// Constructors of compound values, with small and with false lengths.
const AMQP_CODES: &[&[u8]] = &[
    &[0x00, 0x53, 0x75, 0xb0, 0xff, 0xff, 0xff, 0xff],
    &[0x00, 0x53, 0x74, 0xd1, 0, 0, 0, 4, 0, 0, 0, 0],
    &[0xd0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    &[0xf0, 0, 0, 0, 5, 0, 0, 0xff, 0xff, 0x45],
    &[0xc0, 3, 1, 0xc0, 1, 0],
    &[0x45],
    &[0x40],
];

fn small_message() -> Vec<u8> {
    let mut buffer = BytesMut::new();
    let properties = Properties { message_id: Some("id".into()), ..Properties::default() };
    MessageWriter::new(&mut buffer).header(&Header::default()).properties(&properties).data(b"body");
    buffer.to_vec()
}
