//! The properties of a message as rules see them, and the changed copy that an action makes.

use std::borrow::Cow;

use amqp::Message;
use amqp::codec::{MapWriter, code, encode};
use amqp::message::{Header, MessageId, MessageWriter, Properties, annotation};
use atom_xml::duration;
use bytes::{Bytes, BytesMut};

use super::syntax::{PropertyName, SystemProperty};
use super::value::{EvaluationError, SqlValue, TICKS_PER_MILLISECOND};
use crate::core::Timestamp;

/// A message during one evaluation. Changes affect only this value.
#[derive(Clone)]
pub(crate) struct MessageContext<'m> {
    message: &'m Message,
    properties: Properties<'m>,
    user: Vec<UserProperty<'m>>,
    /// System properties that an action has set; null if it removed them.
    changed: Vec<(SystemProperty, SqlValue<'m>)>,
    enqueued_at: Timestamp,
    /// In milliseconds.
    time_to_live: Option<u64>,
}

#[derive(Clone)]
struct UserProperty<'m> {
    name: Cow<'m, str>,
    value: SqlValue<'m>,
    /// The AMQP type that it was sent with; 0 for a new property.
    code: u8,
    changed: bool,
}

/// A copy of a message that an action made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChangedMessage {
    pub(crate) body: Bytes,
    pub(crate) session_id: Option<Box<str>>,
    pub(crate) time_to_live: Option<u64>,
}

impl<'m> MessageContext<'m> {
    /// A message whose properties cannot be decoded has none.
    pub(crate) fn new(message: &'m Message, enqueued_at: Timestamp, time_to_live: Option<u64>) -> Self {
        let user = message.application_properties().filter_map(|(name, value)| {
            let name = Cow::Borrowed(name.as_text()?);
            Some(UserProperty { name, value: SqlValue::decode(value), code: value.code(), changed: false })
        });
        Self {
            message,
            properties: message.properties().unwrap_or_default(),
            user: user.collect(),
            changed: Vec::new(),
            enqueued_at,
            time_to_live,
        }
    }

    /// Null if it is missing.
    pub(super) fn get(&self, property: &PropertyName) -> SqlValue<'_> {
        match property {
            PropertyName::System(property) => self.system(*property),
            PropertyName::User(name) => self.find(name).map_or(SqlValue::Null, |found| found.value.borrow()),
        }
    }

    pub(super) fn has(&self, property: &PropertyName) -> bool {
        match property {
            PropertyName::System(property) => self.system(*property) != SqlValue::Null,
            PropertyName::User(name) => self.find(name).is_some(),
        }
    }

    pub(super) fn user_properties(&self) -> impl Iterator<Item = (&str, &SqlValue<'m>)> {
        self.user.iter().map(|property| (&*property.name, &property.value))
    }

    fn find(&self, name: &str) -> Option<&UserProperty<'m>> {
        self.user.iter().find(|property| property.name.eq_ignore_ascii_case(name))
    }

    pub(super) fn system(&self, property: SystemProperty) -> SqlValue<'_> {
        if let Some((_, value)) = self.changed.iter().find(|(changed, _)| *changed == property) {
            return value.borrow();
        }
        let text = |text: Option<&'m str>| text.map_or(SqlValue::Null, |text| SqlValue::Text(text.into()));
        let annotation = |name| self.message.annotation(name).map_or(SqlValue::Null, SqlValue::decode);
        match property {
            SystemProperty::ContentType => text(self.properties.content_type),
            SystemProperty::CorrelationId => id_text(self.properties.correlation_id.as_ref()),
            SystemProperty::Label => text(self.properties.subject),
            SystemProperty::MessageId => id_text(self.properties.message_id.as_ref()),
            SystemProperty::ReplyTo => text(self.properties.reply_to),
            SystemProperty::ReplyToSessionId => text(self.properties.reply_to_group_id),
            SystemProperty::SessionId => text(self.properties.group_id),
            SystemProperty::To => text(self.properties.to),
            SystemProperty::PartitionKey => annotation(annotation::PARTITION_KEY),
            SystemProperty::ViaPartitionKey => annotation(annotation::VIA_PARTITION_KEY),
            SystemProperty::ScheduledEnqueueTimeUtc => annotation(annotation::SCHEDULED_ENQUEUE_TIME),
            SystemProperty::TimeToLive => self.time_to_live.map_or(SqlValue::Null, |ttl| {
                SqlValue::Span(i64::try_from(ttl).unwrap_or(i64::MAX).saturating_mul(TICKS_PER_MILLISECOND))
            }),
            SystemProperty::EnqueuedTimeUtc => SqlValue::Time(to_signed(self.enqueued_at.0)),
            SystemProperty::ExpiresAtUtc => self
                .time_to_live
                .map_or(SqlValue::Null, |ttl| SqlValue::Time(to_signed(self.enqueued_at.0.saturating_add(ttl)))),
            SystemProperty::DeliveryCount | SystemProperty::State => SqlValue::Long(0),
            SystemProperty::Size => SqlValue::Long(self.message.encoded().len() as i64),
            // Assigned after the filters have selected the message.
            SystemProperty::DeadLetterSource
            | SystemProperty::EnqueuedSequenceNumber
            | SystemProperty::LockToken
            | SystemProperty::LockedUntilUtc
            | SystemProperty::SequenceNumber => SqlValue::Null,
        }
    }

    /// Sets a property. A number keeps the AMQP type that the property had, if it fits.
    pub(super) fn set(&mut self, property: &PropertyName, value: SqlValue<'m>) -> Result<(), EvaluationError> {
        match property {
            PropertyName::System(property) => self.set_system(*property, value),
            PropertyName::User(name) => {
                match self.user.iter_mut().find(|property| property.name.eq_ignore_ascii_case(name)) {
                    Some(property) => (property.value, property.changed) = (value, true),
                    None => {
                        let name = Cow::Owned(name.to_string());
                        self.user.push(UserProperty { name, value, code: 0, changed: true });
                    }
                }
                Ok(())
            }
        }
    }

    pub(super) fn remove(&mut self, property: &PropertyName) -> Result<(), EvaluationError> {
        match property {
            PropertyName::System(property) => self.set_system(*property, SqlValue::Null),
            PropertyName::User(name) => {
                self.user.retain(|property| !property.name.eq_ignore_ascii_case(name));
                Ok(())
            }
        }
    }

    fn set_system(&mut self, property: SystemProperty, value: SqlValue<'m>) -> Result<(), EvaluationError> {
        let value = match (property, value) {
            (_, SqlValue::Null) => SqlValue::Null,
            (SystemProperty::TimeToLive, SqlValue::Span(ticks)) if ticks > 0 => SqlValue::Span(ticks),
            (SystemProperty::TimeToLive, SqlValue::Text(text)) => {
                let span = duration::parse(&text).map_err(|_| EvaluationError::SystemValue)?;
                let ticks = i64::try_from(span.as_nanos() / 100).map_err(|_| EvaluationError::SystemValue)?;
                SqlValue::Span(ticks)
            }
            (SystemProperty::TimeToLive, _) => return Err(EvaluationError::SystemValue),
            (SystemProperty::ScheduledEnqueueTimeUtc, value @ SqlValue::Time(_)) => value,
            (SystemProperty::ScheduledEnqueueTimeUtc, _) => return Err(EvaluationError::SystemValue),
            (_, value @ SqlValue::Text(_)) => value,
            (_, value @ (SqlValue::Long(_) | SqlValue::Double(_) | SqlValue::Guid(_) | SqlValue::Boolean(_))) => {
                SqlValue::Text(value.to_string().into())
            }
            _ => return Err(EvaluationError::SystemValue),
        };
        match self.changed.iter_mut().find(|(changed, _)| *changed == property) {
            Some((_, old)) => *old = value,
            None => self.changed.push((property, value)),
        }
        Ok(())
    }

    fn change_of(&self, property: SystemProperty) -> Option<&SqlValue<'m>> {
        self.changed.iter().find(|(changed, _)| *changed == property).map(|(_, value)| value)
    }

    /// The text of a property after all changes.
    fn text_of<'a>(&'a self, property: SystemProperty, sent: Option<&'a str>) -> Option<&'a str> {
        match self.change_of(property) {
            Some(SqlValue::Text(text)) => Some(text),
            Some(_) => None,
            None => sent,
        }
    }

    /// Encodes the message with its changes. Body and footer keep their bytes.
    pub(super) fn encode(&self) -> ChangedMessage {
        let mut buffer = BytesMut::new();
        let mut writer = MessageWriter::new(&mut buffer);
        let time_to_live = match self.change_of(SystemProperty::TimeToLive) {
            Some(SqlValue::Span(ticks)) => Some((ticks / TICKS_PER_MILLISECOND).max(1) as u64),
            Some(_) => None,
            None => self.time_to_live,
        };
        let sent = self.message.header().unwrap_or_default();
        writer.header(&Header { ttl: time_to_live.map(|ttl| u32::try_from(ttl).unwrap_or(u32::MAX)), ..sent });
        writer.delivery_annotations_over(self.message.delivery_annotations(), &[], |_| {});
        self.write_annotations(&mut writer);
        let id = |property, sent: &Option<MessageId<'m>>| match self.change_of(property) {
            Some(SqlValue::Text(text)) => Some(MessageId::from(&**text).into_owned()),
            Some(_) => None,
            None => sent.clone().map(MessageId::into_owned),
        };
        let sent = &self.properties;
        let session = self.text_of(SystemProperty::SessionId, sent.group_id);
        writer.properties(&Properties {
            message_id: id(SystemProperty::MessageId, &sent.message_id),
            correlation_id: id(SystemProperty::CorrelationId, &sent.correlation_id),
            to: self.text_of(SystemProperty::To, sent.to),
            subject: self.text_of(SystemProperty::Label, sent.subject),
            reply_to: self.text_of(SystemProperty::ReplyTo, sent.reply_to),
            content_type: self.text_of(SystemProperty::ContentType, sent.content_type),
            group_id: session,
            reply_to_group_id: self.text_of(SystemProperty::ReplyToSessionId, sent.reply_to_group_id),
            // With both times, clients would compute the old time to live.
            absolute_expiry_time: sent.absolute_expiry_time.filter(|_| time_to_live == self.time_to_live),
            ..sent.clone()
        });
        self.write_user_properties(&mut writer);
        writer.encoded(&self.message.body_and_footer());
        let session_id = session.map(Into::into);
        ChangedMessage { body: buffer.freeze(), session_id, time_to_live }
    }

    fn write_annotations(&self, writer: &mut MessageWriter<'_>) {
        let names = [
            (SystemProperty::PartitionKey, annotation::PARTITION_KEY),
            (SystemProperty::ViaPartitionKey, annotation::VIA_PARTITION_KEY),
            (SystemProperty::ScheduledEnqueueTimeUtc, annotation::SCHEDULED_ENQUEUE_TIME),
        ];
        let changes: Vec<_> =
            names.iter().filter_map(|(property, name)| Some((*name, self.change_of(*property)?))).collect();
        let replaced: Vec<&str> = changes.iter().map(|(name, _)| *name).collect();
        writer.message_annotations_over(self.message.message_annotations(), &replaced, |map| {
            for (name, value) in changes {
                match value {
                    SqlValue::Text(text) => drop(map.put_string(name, text)),
                    SqlValue::Time(time) => drop(map.put_timestamp(name, *time)),
                    _ => {}
                }
            }
        });
    }

    fn write_user_properties(&self, writer: &mut MessageWriter<'_>) {
        let sent = self.message.application_properties();
        // Unchanged values keep their bytes: also types that no expression can hold.
        let is_kept = |name: &str| self.user.iter().any(|property| property.name == name && !property.changed);
        let names = sent.filter_map(|(name, _)| name.as_text());
        let replaced: Vec<&str> = names.filter(|name| !is_kept(name)).collect();
        writer.application_properties_over(self.message.application_properties(), &replaced, |map| {
            for property in self.user.iter().filter(|property| property.changed) {
                property.write(map);
            }
        });
    }
}

impl UserProperty<'_> {
    fn write(&self, map: &mut MapWriter<'_>) {
        let buffer = map.string(&self.name);
        match &self.value {
            SqlValue::Null | SqlValue::Other => encode::null(buffer),
            SqlValue::Boolean(truth) => encode::boolean(buffer, *truth),
            SqlValue::Long(number) => write_integer(buffer, *number, self.code),
            SqlValue::Double(number) if self.code == code::FLOAT => encode::float(buffer, *number as f32),
            SqlValue::Double(number) => encode::double(buffer, *number),
            SqlValue::Text(text) => encode::string(buffer, text),
            SqlValue::Guid(id) => encode::uuid(buffer, *id),
            SqlValue::Time(time) => encode::timestamp(buffer, *time),
            SqlValue::Span(ticks) => {
                buffer.extend_from_slice(&[code::DESCRIBED]);
                encode::symbol(buffer, "com.microsoft:timespan");
                encode::long(buffer, *ticks);
            }
        }
    }
}

/// With the type that the property had, if the number fits.
fn write_integer(buffer: &mut BytesMut, number: i64, had: u8) {
    match had {
        code::INT | code::SMALL_INT if i32::try_from(number).is_ok() => encode::int(buffer, number as i32),
        code::UINT | code::SMALL_UINT | code::UINT0 if u32::try_from(number).is_ok() => {
            encode::uint(buffer, number as u32)
        }
        code::ULONG | code::SMALL_ULONG | code::ULONG0 if number >= 0 => encode::ulong(buffer, number as u64),
        code::SHORT if i16::try_from(number).is_ok() => encode::short(buffer, number as i16),
        code::USHORT if u16::try_from(number).is_ok() => encode::ushort(buffer, number as u16),
        code::BYTE if i8::try_from(number).is_ok() => encode::byte(buffer, number as i8),
        code::UBYTE if u8::try_from(number).is_ok() => encode::ubyte(buffer, number as u8),
        code::DOUBLE => encode::double(buffer, number as f64),
        code::FLOAT => encode::float(buffer, number as f32),
        _ => encode::long(buffer, number),
    }
}

/// Ids of every type are compared as text, as for duplicate detection.
fn id_text<'a>(id: Option<&'a MessageId<'_>>) -> SqlValue<'a> {
    match id {
        None => SqlValue::Null,
        Some(id) => SqlValue::Text(id.as_str().map_or_else(|| id.to_string().into(), Into::into)),
    }
}

fn to_signed(millis: u64) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX)
}
