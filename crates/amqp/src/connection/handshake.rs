//! Protocol headers and SASL: everything before the first AMQP frame.

use bytes::BytesMut;

use super::{ClientSasl, Connection, ConnectionPhase, ServerSasl};
use crate::codec::{DecodeError, Decoder};
use crate::condition;
use crate::frame::{FrameHeader, ProtocolHeader, write_frame, write_sasl_frame};
use crate::performative::{Error, Open};
use crate::sasl::{SaslCode, SaslFrame};

/// The mechanism with user and password.
const PLAIN: &str = "PLAIN";

/// Which side of the connection we are.
#[derive(Debug)]
pub(super) enum ConnectionSide {
    Client { sasl: ClientSasl, pipelined: bool },
    Server(ServerSasl),
}

impl ConnectionSide {
    pub(super) fn client(sasl: ClientSasl) -> Self {
        Self::Client { sasl, pipelined: false }
    }
}

impl Connection {
    /// A client's first bytes.
    pub(super) fn write_first_bytes(&mut self) {
        if self.sasl_init().is_some() {
            self.output.handshake_buffer().extend_from_slice(&ProtocolHeader::Sasl.bytes());
        } else {
            self.phase = ConnectionPhase::AmqpHeader;
            self.write_header_and_open();
        }
    }

    /// A client's first bytes when it does not wait for replies.
    pub(super) fn write_pipelined_handshake(&mut self) {
        self.write_first_bytes();
        if let Some(init) = self.sasl_init() {
            write_sasl_frame(self.output.handshake_buffer(), &init);
            self.write_header_and_open();
        }
        if let ConnectionSide::Client { pipelined, .. } = &mut self.side {
            *pipelined = true;
        }
    }

    pub(super) fn take_header(&mut self, input: &mut BytesMut) -> bool {
        let Some(bytes) = input.first_chunk::<{ ProtocolHeader::LENGTH }>() else { return false };
        let header = ProtocolHeader::parse(*bytes);
        let _ = input.split_to(ProtocolHeader::LENGTH);
        match (&self.side, self.phase, header) {
            (ConnectionSide::Server(sasl), ConnectionPhase::Header, Some(ProtocolHeader::Sasl)) => {
                let mechanisms = SaslFrame::Mechanisms(sasl.mechanisms.clone());
                self.output.handshake_buffer().extend_from_slice(&ProtocolHeader::Sasl.bytes());
                write_sasl_frame(self.output.handshake_buffer(), &mechanisms);
                self.phase = ConnectionPhase::SaslInit;
            }
            (ConnectionSide::Server(sasl), ConnectionPhase::Header, Some(ProtocolHeader::Amqp)) if !sasl.required => {
                self.accept_amqp_header()
            }
            (ConnectionSide::Server(_), ConnectionPhase::AmqpHeader, Some(ProtocolHeader::Amqp)) => {
                self.accept_amqp_header()
            }
            (ConnectionSide::Client { .. }, ConnectionPhase::Header, Some(ProtocolHeader::Sasl)) => {
                self.phase = ConnectionPhase::SaslMechanisms
            }
            (ConnectionSide::Client { .. }, ConnectionPhase::AmqpHeader, Some(ProtocolHeader::Amqp)) => {
                self.phase = ConnectionPhase::Frames
            }
            (ConnectionSide::Server(_), ..) => {
                // The reply to an unsupported header is a supported one.
                self.output.handshake_buffer().extend_from_slice(&ProtocolHeader::Sasl.bytes());
                self.fail(Error::new(condition::FRAMING_ERROR, "protocol header is not one we speak"));
            }
            (ConnectionSide::Client { .. }, ..) => {
                self.fail(Error::new(condition::FRAMING_ERROR, "peer answered with another protocol header"));
            }
        }
        true
    }

    fn accept_amqp_header(&mut self) {
        self.output.handshake_buffer().extend_from_slice(&ProtocolHeader::Amqp.bytes());
        self.phase = ConnectionPhase::Frames;
    }

    pub(super) fn take_sasl_frame(&mut self, input: &mut BytesMut) -> bool {
        let head = match FrameHeader::parse(input, self.config.max_frame_size) {
            Ok(Some(head)) if input.len() >= head.size => head,
            Ok(_) => return false,
            Err(error) => {
                self.fail(Error::new(condition::FRAMING_ERROR, error.to_string()));
                return true;
            }
        };
        let frame = input.split_to(head.size).freeze().slice(head.body..);
        let decoded = if head.sasl {
            SaslFrame::decode(&mut Decoder::new(&frame))
        } else {
            Err(DecodeError::OutOfRange("frame type"))
        };
        match decoded {
            Ok(frame) => self.sasl_frame(frame),
            Err(error) => self.fail(Error::new(condition::DECODE_ERROR, error.to_string())),
        }
        true
    }

    fn sasl_frame(&mut self, frame: SaslFrame) {
        match (self.phase, frame) {
            (ConnectionPhase::SaslMechanisms, SaslFrame::Mechanisms(offered)) => self.choose_mechanism(&offered),
            (ConnectionPhase::SaslInit, SaslFrame::Init { mechanism, initial_response, .. }) => {
                self.check_mechanism(&mechanism, &initial_response.unwrap_or_default());
            }
            (ConnectionPhase::SaslOutcome, SaslFrame::Outcome { code: SaslCode::Ok, .. }) => {
                self.phase = ConnectionPhase::AmqpHeader;
                if !self.is_pipelined() {
                    self.write_header_and_open();
                }
            }
            (ConnectionPhase::SaslOutcome, SaslFrame::Outcome { code, .. }) => {
                self.fail(Error::new(
                    condition::UNAUTHORIZED_ACCESS,
                    format!("peer refused the credentials: {code:?}"),
                ));
            }
            (_, frame) => {
                self.fail(Error::new(condition::ILLEGAL_STATE, format!("SASL frame out of turn: {frame:?}")));
            }
        }
    }

    fn choose_mechanism(&mut self, offered: &[crate::Symbol]) {
        let Some(init) = self.sasl_init() else {
            return self.fail(Error::new(condition::ILLEGAL_STATE, "SASL was not asked for"));
        };
        let SaslFrame::Init { mechanism, .. } = &init else { unreachable!("sasl_init makes an init") };
        if !offered.contains(mechanism) {
            let text = format!("peer does not offer {mechanism}");
            return self.fail(Error::new(condition::UNAUTHORIZED_ACCESS, text));
        }
        if !self.is_pipelined() {
            write_sasl_frame(self.output.handshake_buffer(), &init);
        }
        self.phase = ConnectionPhase::SaslOutcome;
    }

    fn check_mechanism(&mut self, mechanism: &crate::Symbol, response: &[u8]) {
        let ConnectionSide::Server(sasl) = &self.side else { unreachable!("only a server waits for init") };
        let offered = sasl.mechanisms.contains(mechanism);
        let verifier = sasl.plain.as_ref().filter(|_| mechanism.as_str() == PLAIN);
        let accepted = offered && verifier.is_none_or(|verifier| verifier.accepts(response));
        let code = if accepted { SaslCode::Ok } else { SaslCode::Auth };
        write_sasl_frame(self.output.handshake_buffer(), &SaslFrame::Outcome { code, additional_data: None });
        if accepted {
            self.phase = ConnectionPhase::AmqpHeader;
        } else {
            let text = if offered { "wrong user or password" } else { "mechanism was not offered" };
            self.fail(Error::new(condition::UNAUTHORIZED_ACCESS, text));
        }
    }

    fn sasl_init(&self) -> Option<SaslFrame> {
        let ConnectionSide::Client { sasl, .. } = &self.side else { return None };
        let (mechanism, initial_response) = sasl.initial()?;
        Some(SaslFrame::Init { mechanism, initial_response, hostname: self.config.hostname.clone() })
    }

    fn is_pipelined(&self) -> bool {
        matches!(self.side, ConnectionSide::Client { pipelined: true, .. })
    }

    fn write_header_and_open(&mut self) {
        self.output.handshake_buffer().extend_from_slice(&ProtocolHeader::Amqp.bytes());
        self.write_open();
    }

    pub(super) fn write_open(&mut self) {
        let half = |limit: std::time::Duration| u32::try_from(limit.as_millis() / 2).unwrap_or(u32::MAX).max(1);
        let open = Open {
            container_id: self.config.container_id.clone(),
            hostname: self.config.hostname.clone(),
            max_frame_size: self.config.max_frame_size,
            channel_max: self.config.channel_max,
            idle_time_out: self.config.idle_time_out.map(half),
            outgoing_locales: None,
            incoming_locales: None,
            offered_capabilities: self.config.offered_capabilities.clone(),
            desired_capabilities: self.config.desired_capabilities.clone(),
            properties: self.config.properties.clone(),
        };
        write_frame(self.output.handshake_buffer(), 0, |buffer| open.encode(buffer));
        self.output.release_held();
    }
}
