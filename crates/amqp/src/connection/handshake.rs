//! Protocol headers and SASL: everything before the first AMQP frame.

use bytes::BytesMut;

use super::{ClientSasl, Connection, Phase, ServerSasl};
use crate::codec::{DecodeError, Reader};
use crate::condition;
use crate::frame::{FrameHead, ProtocolHeader, write_frame, write_sasl_frame};
use crate::performative::{Error, Open};
use crate::sasl::{SaslCode, SaslFrame};

/// Which side of the connection we are.
#[derive(Debug)]
pub(super) enum Side {
    Client { sasl: ClientSasl, pipelined: bool },
    Server(ServerSasl),
}

impl Side {
    pub(super) fn client(sasl: ClientSasl) -> Self {
        Self::Client { sasl, pipelined: false }
    }
}

impl Connection {
    /// A client's first bytes.
    pub(super) fn start(&mut self) {
        if self.sasl_init().is_some() {
            self.output.handshake().extend_from_slice(&ProtocolHeader::Sasl.bytes());
        } else {
            self.phase = Phase::AmqpHeader;
            self.write_header_and_open();
        }
    }

    /// A client's first bytes when it does not wait for answers.
    pub(super) fn start_pipelined(&mut self) {
        self.start();
        if let Some(init) = self.sasl_init() {
            write_sasl_frame(self.output.handshake(), &init);
            self.write_header_and_open();
        }
        if let Side::Client { pipelined, .. } = &mut self.side {
            *pipelined = true;
        }
    }

    pub(super) fn take_header(&mut self, input: &mut BytesMut) -> bool {
        let Some(bytes) = input.first_chunk::<{ ProtocolHeader::LENGTH }>() else { return false };
        let header = ProtocolHeader::parse(*bytes);
        let _ = input.split_to(ProtocolHeader::LENGTH);
        match (&self.side, self.phase, header) {
            (Side::Server(sasl), Phase::Header, Some(ProtocolHeader::Sasl)) => {
                let mechanisms = SaslFrame::Mechanisms(sasl.mechanisms.clone());
                self.output.handshake().extend_from_slice(&ProtocolHeader::Sasl.bytes());
                write_sasl_frame(self.output.handshake(), &mechanisms);
                self.phase = Phase::SaslInit;
            }
            (Side::Server(sasl), Phase::Header, Some(ProtocolHeader::Amqp)) if !sasl.required => self.answer_header(),
            (Side::Server(_), Phase::AmqpHeader, Some(ProtocolHeader::Amqp)) => self.answer_header(),
            (Side::Client { .. }, Phase::Header, Some(ProtocolHeader::Sasl)) => self.phase = Phase::SaslMechanisms,
            (Side::Client { .. }, Phase::AmqpHeader, Some(ProtocolHeader::Amqp)) => self.phase = Phase::Frames,
            (Side::Server(_), ..) => {
                // The answer to a header one does not speak is the one that one does.
                self.output.handshake().extend_from_slice(&ProtocolHeader::Sasl.bytes());
                self.fail(Error::new(condition::FRAMING_ERROR, "protocol header is not one we speak"));
            }
            (Side::Client { .. }, ..) => {
                self.fail(Error::new(condition::FRAMING_ERROR, "peer answered with another protocol header"));
            }
        }
        true
    }

    fn answer_header(&mut self) {
        self.output.handshake().extend_from_slice(&ProtocolHeader::Amqp.bytes());
        self.phase = Phase::Frames;
    }

    pub(super) fn take_sasl_frame(&mut self, input: &mut BytesMut) -> bool {
        let head = match FrameHead::parse(input, self.config.max_frame_size) {
            Ok(Some(head)) if input.len() >= head.size => head,
            Ok(_) => return false,
            Err(error) => {
                self.fail(Error::new(condition::FRAMING_ERROR, error.to_string()));
                return true;
            }
        };
        let frame = input.split_to(head.size).freeze().slice(head.body..);
        let decoded = if head.sasl {
            SaslFrame::decode(&mut Reader::new(&frame))
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
            (Phase::SaslMechanisms, SaslFrame::Mechanisms(offered)) => self.choose_mechanism(&offered),
            (Phase::SaslInit, SaslFrame::Init { mechanism, .. }) => self.judge_mechanism(&mechanism),
            (Phase::SaslOutcome, SaslFrame::Outcome { code: SaslCode::Ok, .. }) => {
                self.phase = Phase::AmqpHeader;
                if !self.is_pipelined() {
                    self.write_header_and_open();
                }
            }
            (Phase::SaslOutcome, SaslFrame::Outcome { code, .. }) => {
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
            write_sasl_frame(self.output.handshake(), &init);
        }
        self.phase = Phase::SaslOutcome;
    }

    fn judge_mechanism(&mut self, mechanism: &crate::Symbol) {
        let Side::Server(sasl) = &self.side else { unreachable!("only a server waits for init") };
        let offered = sasl.mechanisms.contains(mechanism);
        let code = if offered { SaslCode::Ok } else { SaslCode::Auth };
        write_sasl_frame(self.output.handshake(), &SaslFrame::Outcome { code, additional_data: None });
        if offered {
            self.phase = Phase::AmqpHeader;
        } else {
            self.fail(Error::new(condition::UNAUTHORIZED_ACCESS, "mechanism was not offered"));
        }
    }

    fn sasl_init(&self) -> Option<SaslFrame> {
        let Side::Client { sasl, .. } = &self.side else { return None };
        let (mechanism, initial_response) = sasl.initial()?;
        Some(SaslFrame::Init { mechanism, initial_response, hostname: self.config.hostname.clone() })
    }

    fn is_pipelined(&self) -> bool {
        matches!(self.side, Side::Client { pipelined: true, .. })
    }

    fn write_header_and_open(&mut self) {
        self.output.handshake().extend_from_slice(&ProtocolHeader::Amqp.bytes());
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
        write_frame(self.output.handshake(), 0, |buffer| open.encode(buffer));
        self.output.release();
    }
}
