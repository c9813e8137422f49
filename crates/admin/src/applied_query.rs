//! The query of `/api/applied`: `aggregate=order-7&sequence=12&timeout=5`, or `event=65a0…&timeout=5`.

use std::time::Duration;

use crate::operator::{AppliedRequest, EventSelector};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Proxies and load balancers close a silent connection after a minute.
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn parse(query: &str) -> Result<AppliedRequest, &'static str> {
    let (mut aggregate, mut sequence, mut event, mut timeout) = (None, None, None, DEFAULT_TIMEOUT);
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        let value = decode(value).ok_or("the query is not percent-encoded UTF-8")?;
        match name {
            "aggregate" => aggregate = Some(value),
            "sequence" => sequence = Some(value.parse().map_err(|_| "`sequence` must be a whole number")?),
            "event" => event = Some(value),
            "timeout" => timeout = parse_timeout(&value).ok_or("`timeout` must be seconds, up to 30")?,
            // Chosen by the server already.
            "pipeline" => {}
            _ => return Err("unknown parameter; use `aggregate` and `sequence`, or `event`, and `timeout`"),
        }
    }
    let is_given = |id: &Option<String>| id.as_ref().is_some_and(|id| !id.is_empty());
    let event = match (aggregate, sequence, event) {
        (None, None, event) if is_given(&event) => EventSelector::Id(event.unwrap_or_default()),
        (_, _, Some(_)) => return Err("`event` must not be empty, and stands alone"),
        (aggregate, Some(sequence), None) if is_given(&aggregate) => {
            EventSelector::Sequence { aggregate: aggregate.unwrap_or_default(), sequence }
        }
        (_, None, None) => return Err("`sequence` is missing"),
        (_, Some(_), None) => return Err("`aggregate` is missing"),
    };
    Ok(AppliedRequest { event, timeout })
}

fn parse_timeout(seconds: &str) -> Option<Duration> {
    let timeout = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
    (timeout <= MAX_TIMEOUT).then_some(timeout)
}

/// `None` if it is not percent-encoded UTF-8.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_an_event_and_a_timeout() {
        let request = |aggregate: &str, timeout| {
            let event = EventSelector::Sequence { aggregate: aggregate.into(), sequence: 12 };
            Ok(AppliedRequest { event, timeout: Duration::from_millis(timeout) })
        };
        assert_eq!(parse("aggregate=order-7&sequence=12"), request("order-7", 5_000));
        assert_eq!(parse("sequence=12&timeout=0.25&aggregate=a%26b%20c+d%C3%A9"), request("a&b c dé", 250));
        let by_id = AppliedRequest { event: EventSelector::Id("7/x".into()), timeout: DEFAULT_TIMEOUT };
        assert_eq!(parse("event=7%2Fx"), Ok(by_id));
        for wrong in [
            "",
            "event=",
            "event=7&sequence=1",
            "event=7&aggregate=a",
            "aggregate=a",
            "aggregate=&sequence=1",
            "sequence=1",
            "aggregate=a&sequence=x",
            "aggregate=a&sequence=1&timeout=31",
            "aggregate=a&sequence=1&timeout=-1",
            "aggregate=%FF&sequence=1",
            "aggregate=%4&sequence=1",
            "aggregate=a&sequence=1&model=x",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
