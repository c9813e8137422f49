//! Test hooks: advance the broker's clock, arm faults, reset everything.
//!
//! Disabled unless a token is configured. A request must send it in [`TEST_TOKEN_HEADER`]; otherwise the paths return
//! 404 like any unknown path. Bodies and responses are JSON.
//!
//! | request | body | |
//! | --- | --- | --- |
//! | `GET /$test/state` | | returns the [`TestReport`], as every other request does too |
//! | `POST /$test/clock` | `{"advance_ms": 60000}` | advances the broker's clock |
//! | `POST /$test/faults` | a [`FaultSpec`], such as `{"kind": "server_busy", "times": 3}` or `{"kind": "detach_link", "condition": "amqp:not-allowed", "at": "send", "skip": 100, "when": "after"}` | arms it |
//! | `DELETE /$test/faults` | | disarms all |
//! | `POST /$test/reset` | | deletes all entities and their messages, creates the configured ones again, disarms all faults |

use hyper::header::HeaderMap;
use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};

use super::backend::NamespaceBackend;
use super::response::{self, HttpError, HttpResponse};

pub const TEST_TOKEN_HEADER: &str = "x-headwater-test-token";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestCommand {
    Report,
    AdvanceClock {
        ms: u64,
    },
    Arm(FaultSpec),
    Disarm,
    /// Back to the configured entities, without messages.
    Reset,
}

/// A fault, and when to inject it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultSpec {
    #[serde(flatten)]
    pub kind: FaultKind,
    /// Only for this entity (path, case-insensitive); `None`: any entity.
    #[serde(default)]
    pub entity: Option<String>,
    /// Number of occasions to skip first.
    #[serde(default)]
    pub skip: u64,
    /// How often to inject it.
    #[serde(default = "once")]
    pub times: u64,
    /// Inject at one in this many occasions, chosen by `seed`; 1: at every one.
    #[serde(default = "once")]
    pub one_in: u64,
    #[serde(default)]
    pub seed: u64,
    /// Only at these occasions; `None`: at all occasions of the kind.
    #[serde(default)]
    pub at: Option<FaultOccasion>,
    /// Before or after the request of the occasion takes effect. Only for `detach_link` and `close_connection`; `None`:
    /// before a send or settlement, after a delivery.
    #[serde(default)]
    pub when: Option<FaultTiming>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultOccasion {
    Send,
    Settlement,
    Delivery,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultTiming {
    /// The message is not stored, the settlement not executed, the delivery not sent.
    Before,
    /// The message is stored, or the settlement executed, without an acknowledgement; the delivery is sent.
    After,
}

impl FaultSpec {
    /// Injects this kind once, at the first occasion.
    pub fn new(kind: FaultKind) -> Self {
        Self { kind, entity: None, skip: 0, times: 1, one_in: 1, seed: 0, at: None, when: None }
    }
}

fn once() -> u64 {
    1
}

/// The kind of fault. An occasion is a send, a settlement or a delivery where the fault could be injected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FaultKind {
    /// At a send or settlement: the connection is closed before it is executed.
    DropConnection,
    /// At a send or delivery, or at a settlement if `at` says so: the link is detached with this error, by default
    /// `amqp:link:detach-forced`. Later transfers of a detached sender are discarded.
    DetachLink {
        #[serde(default)]
        condition: Option<String>,
        #[serde(default)]
        description: Option<String>,
    },
    /// At a send, settlement or delivery: the connection is closed with this error, by default
    /// `amqp:connection:forced`. Later requests of the connection are discarded.
    CloseConnection {
        #[serde(default)]
        condition: Option<String>,
        #[serde(default)]
        description: Option<String>,
    },
    /// At a send: nothing is stored, and the sender gets `com.microsoft:server-busy`.
    ServerBusy,
    /// At a send: the message is stored, and the connection is closed before the acknowledgement.
    LoseAcknowledgement,
    /// At a send: the sender gets its acknowledgement, and nothing is stored. The messages of the transfer are lost for good.
    LoseMessages,
    /// At a delivery from a session, or at once for the named session: its lock expires.
    ExpireSessionLock {
        #[serde(default)]
        session: Option<String>,
    },
    /// At a send or settlement: the reply is delayed.
    Delay { ms: u64 },
}

/// Decides at each occasion whether to inject a fault. The same fault always gives the same decisions.
#[derive(Debug, Clone)]
pub struct FaultSchedule {
    fault: FaultSpec,
    occasions: u64,
    injected: u64,
}

impl FaultSchedule {
    pub fn new(fault: FaultSpec) -> Self {
        Self { fault, occasions: 0, injected: 0 }
    }

    pub fn fault(&self) -> &FaultSpec {
        &self.fault
    }

    /// True if it was injected as often as requested.
    pub fn is_exhausted(&self) -> bool {
        self.injected >= self.fault.times
    }

    /// Must be called once per occasion.
    pub fn should_inject(&mut self) -> bool {
        let occasion = self.occasions;
        self.occasions += 1;
        let chosen = hash_occasion(self.fault.seed, occasion).is_multiple_of(self.fault.one_in.max(1));
        let injects = !self.is_exhausted() && occasion >= self.fault.skip && chosen;
        self.injected += u64::from(injects);
        injects
    }
}

/// SplitMix64: a pseudo-random number per seed and occasion.
fn hash_occasion(seed: u64, occasion: u64) -> u64 {
    let mut value = seed.wrapping_add(occasion.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TestReport {
    /// The broker's clock, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// Faults that are armed and not exhausted.
    pub armed: Vec<FaultSpec>,
    /// Number of faults injected since the start.
    pub injected: u64,
}

/// Checks the token in constant time, so that timing does not reveal how much of it is right.
pub(super) fn check_token(token: Option<&str>, headers: &HeaderMap) -> Option<()> {
    let (token, shown) = (token?.as_bytes(), headers.get(TEST_TOKEN_HEADER)?.as_bytes());
    let differences = token.iter().zip(shown).fold(0, |all, (one, other)| all | (one ^ other));
    (!token.is_empty() && token.len() == shown.len() && differences == 0).then_some(())
}

pub(super) async fn handle(
    backend: &impl NamespaceBackend,
    method: &Method,
    path: &str,
    body: &[u8],
) -> Result<HttpResponse, HttpError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct ClockCommand {
        advance_ms: u64,
    }
    let command = match (method, path) {
        (&Method::GET, "state") => TestCommand::Report,
        (&Method::POST, "clock") => TestCommand::AdvanceClock { ms: parse_json::<ClockCommand>(body)?.advance_ms },
        (&Method::POST, "faults") => TestCommand::Arm(parse_fault(body)?),
        (&Method::DELETE, "faults") => TestCommand::Disarm,
        (&Method::POST, "reset") => TestCommand::Reset,
        (_, "state" | "clock" | "faults" | "reset") => return Err(HttpError::method_not_allowed(method)),
        _ => return Err(HttpError::not_found(&format!("$test/{path}"))),
    };
    let report = backend.run_test_command(command).await?;
    Ok(response::json(StatusCode::OK, &report))
}

/// A misspelt key would arm a different fault. Serde cannot reject unknown keys in a flattened struct.
fn parse_fault(body: &[u8]) -> Result<FaultSpec, HttpError> {
    const KEYS: [&str; 12] = [
        "kind",
        "entity",
        "skip",
        "times",
        "one_in",
        "seed",
        "session",
        "ms",
        "at",
        "when",
        "condition",
        "description",
    ];
    let keys = parse_json::<serde_json::Map<String, serde_json::Value>>(body)?;
    if let Some(key) = keys.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(HttpError::bad_request(format!("unknown key `{key}`: expected one of {}", KEYS.join(", "))));
    }
    let fault: FaultSpec = parse_json(body)?;
    match &fault.kind {
        FaultKind::DetachLink { condition, .. } | FaultKind::CloseConnection { condition, .. } => {
            check_condition(condition.as_deref())?;
        }
        _ if fault.when.is_some() => {
            return Err(HttpError::bad_request("`when` is only for `detach_link` and `close_connection`"));
        }
        _ => {}
    }
    Ok(fault)
}

/// A condition is an AMQP symbol. Any other text would make the frame unreadable for the client.
fn check_condition(condition: Option<&str>) -> Result<(), HttpError> {
    match condition.is_none_or(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())) {
        true => Ok(()),
        false => Err(HttpError::bad_request("`condition` must be printable ASCII without spaces")),
    }
}

fn parse_json<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T, HttpError> {
    serde_json::from_slice(body).map_err(|error| HttpError::bad_request(format!("invalid body: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(json: &str) -> FaultSpec {
        super::parse_fault(json.as_bytes()).unwrap()
    }

    #[test]
    fn faults_are_parsed_from_json() {
        let plain = fault(r#"{"kind": "drop_connection"}"#);
        assert_eq!((plain.times, plain.one_in, plain.skip, plain.entity.clone()), (1, 1, 0, None));
        let named = fault(r#"{"kind": "expire_session_lock", "session": "a", "entity": "orders"}"#);
        assert_eq!(named.kind, FaultKind::ExpireSessionLock { session: Some("a".into()) });
        for kind in ["detach_link", "server_busy", "lose_acknowledgement", "lose_messages", "expire_session_lock"] {
            fault(&format!(r#"{{"kind": "{kind}"}}"#));
        }
        let delay = fault(r#"{"kind": "delay", "ms": 20, "times": 3, "one_in": 4, "seed": 9}"#);
        assert_eq!(delay.kind, FaultKind::Delay { ms: 20 });
        assert_eq!(fault(&serde_json::to_string(&delay).unwrap()), delay);
        let detach =
            fault(r#"{"kind": "detach_link", "condition": "amqp:not-allowed", "at": "send", "when": "after"}"#);
        assert_eq!((detach.at, detach.when), (Some(FaultOccasion::Send), Some(FaultTiming::After)));
        assert_eq!(fault(&serde_json::to_string(&detach).unwrap()), detach);
        fault(r#"{"kind": "close_connection", "condition": "amqp:unauthorized-access", "description": "no"}"#);
        for wrong in [
            r#"{"kind": "meteor"}"#,
            r#"{"kind": "delay"}"#,
            r#"{"kind": "server_busy", "tims": 3}"#,
            r#"{"kind": "server_busy", "when": "after"}"#,
            r#"{"kind": "detach_link", "when": "later"}"#,
            r#"{"kind": "detach_link", "condition": "not allowed"}"#,
            r#"{"kind": "close_connection", "condition": ""}"#,
            "[]",
            "",
        ] {
            assert!(super::parse_fault(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    fn should_inject(json: &str, occasions: usize) -> Vec<usize> {
        let mut schedule = FaultSchedule::new(fault(json));
        (0..occasions).filter(|_| schedule.should_inject()).collect()
    }

    #[test]
    fn a_fault_is_injected_on_schedule() {
        assert_eq!(should_inject(r#"{"kind": "server_busy"}"#, 5), [0]);
        assert_eq!(should_inject(r#"{"kind": "server_busy", "skip": 2, "times": 2}"#, 6), [2, 3]);
        let random = r#"{"kind": "server_busy", "one_in": 10, "times": 9999, "seed": 1}"#;
        let hits = should_inject(random, 10_000);
        assert_eq!(hits, should_inject(random, 10_000), "by seed, not by chance");
        assert_ne!(hits, should_inject(&random.replace(r#""seed": 1"#, r#""seed": 2"#), 10_000));
        assert!((900..1100).contains(&hits.len()), "{} of 10,000", hits.len());
    }

    #[test]
    fn only_the_configured_token_is_accepted() {
        let shown = |token: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(token) = token {
                headers.insert(TEST_TOKEN_HEADER, token.parse().unwrap());
            }
            headers
        };
        assert!(check_token(Some("open sesame"), &shown(Some("open sesame"))).is_some());
        for (token, header) in [
            (None, Some("open sesame")),
            (Some(""), Some("")),
            (Some("open sesame"), None),
            (Some("open sesame"), Some("open")),
            (Some("open sesame"), Some("open sesamE")),
            (Some("open"), Some("open sesame")),
        ] {
            assert!(check_token(token, &shown(header)).is_none(), "{token:?} {header:?}");
        }
    }
}
