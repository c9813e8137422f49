//! The announcement of a pod: the document in `pods`, written by the pod and read by the status collector.

use std::time::Duration;

use admin::LatencyBuckets;
use admin::WallTime;
use admin::status::{LatencyQuantiles, PodProblem, PodRole, PodStatus};
use mongodb::bson::{Bson, Document, doc};

use super::{FORMAT, SILENT_AFTER, read_u64, to_bson_int};

/// The state of a pod at one moment. Rates and latencies cover the last seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Announcement {
    pub(crate) version: String,
    pub(crate) generation: Option<String>,
    /// The generation that the pod applies; versions without generations do not say.
    pub(crate) applies: Option<u64>,
    pub(crate) address: Option<String>,
    pub(crate) producer: String,
    pub(crate) consumer: String,
    pub(crate) problems: Vec<PodProblem>,
    /// `None` without read models; so are the next fields.
    pub(crate) sessions: Option<u64>,
    /// Messages and bodies not accepted because of their signature, since the start.
    pub(crate) unverified: Option<u64>,
    pub(crate) applied_per_second: Option<f64>,
    /// Only read models to which the pod has applied an event since its start.
    pub(crate) applied_ago: Vec<(String, Duration)>,
    pub(crate) latency: LatencyBuckets,
    /// `None` while this pod is not the leader; so is the next field.
    pub(crate) published_per_second: Option<f64>,
    pub(crate) in_flight: Option<u64>,
    /// The read-ahead buffer is full, so unread events are not counted.
    pub(crate) read_ahead_full: bool,
    /// How many pipelines the pod leads, of all that it runs.
    pub(crate) leads: u64,
}

impl Announcement {
    pub(super) fn to_document(&self) -> Document {
        let problem = |PodProblem { service, text, page }: &PodProblem| doc! { "service": service, "text": text, "page": page.clone() };
        let applied =
            |(model, ago): &(String, Duration)| doc! { "name": model, "appliedSecondsAgo": ago.as_secs_f64() };
        let counts: Vec<i64> = self.latency.counts.iter().map(|count| to_bson_int(*count)).collect();
        doc! {
            "version": &self.version,
            "generation": self.generation.clone(),
            "applies": self.applies.map(to_bson_int),
            "address": self.address.clone(),
            "producer": &self.producer,
            "consumer": &self.consumer,
            // The stored name of format 1.
            "troubles": self.problems.iter().map(problem).collect::<Vec<_>>(),
            "sessions": self.sessions.map(to_bson_int),
            "unverified": self.unverified.map(to_bson_int),
            "appliedPerSecond": self.applied_per_second,
            // A list, not a map, because a name may contain dots.
            "readModels": self.applied_ago.iter().map(applied).collect::<Vec<_>>(),
            "latency": counts,
            "publishedPerSecond": self.published_per_second,
            "inFlight": self.in_flight.map(to_bson_int),
            "readAheadFull": self.read_ahead_full,
            "leads": to_bson_int(self.leads),
        }
    }
}

/// A pod as read from its announcement, with its share of the pipeline's figures.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AnnouncedPod {
    pub(crate) pod: PodStatus,
    pub(crate) latency: LatencyBuckets,
    /// The last applied event, by name of the read model.
    pub(crate) applied: Vec<(String, LastApplied)>,
    pub(crate) in_flight: Option<u64>,
    pub(crate) read_ahead_full: bool,
}

/// By the clock of the server that stores the announcements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LastApplied {
    pub(crate) at: WallTime,
    pub(crate) seconds_ago: f64,
}

impl AnnouncedPod {
    /// `None` for a document in a format of another version. `now` is the server's time, read with the document.
    pub(crate) fn read(document: &Document, leader: Option<&str>, now: i64) -> Option<Self> {
        if read_u64(document.get("format")) != Some(u64::from(FORMAT.unsigned_abs())) {
            return None;
        }
        let text = |field| document.get_str(field).ok().map(str::to_owned);
        let figure = |field| document.get_f64(field).ok();
        let id = document.get_document("_id").ok()?.get_str("pod").ok()?.to_owned();
        let seen = document.get_datetime("seenAt").ok()?.timestamp_millis();
        let last_seen_seconds_ago = to_seconds(now - seen);
        let latency = read_latency(document);
        let pod = PodStatus {
            role: if leader == Some(&*id) { PodRole::Leader } else { PodRole::Standby },
            id,
            version: text("version").unwrap_or_default(),
            generation: text("generation"),
            address: text("address"),
            started: document.get_datetime("startedAt").ok().map(|at| WallTime::from_millis(at.timestamp_millis())),
            last_seen: WallTime::from_millis(seen),
            last_seen_seconds_ago,
            silent: last_seen_seconds_ago > SILENT_AFTER.as_secs_f64(),
            producer: text("producer").unwrap_or_default(),
            consumer: text("consumer").unwrap_or_default(),
            problems: read_problems(document),
            sessions: read_u64(document.get("sessions")),
            unverified: read_u64(document.get("unverified")),
            published_per_second: figure("publishedPerSecond"),
            applied_per_second: figure("appliedPerSecond"),
            latency: quantiles(&latency),
        };
        Some(Self {
            pod,
            latency,
            applied: read_applied(document, seen, now),
            in_flight: read_u64(document.get("inFlight")),
            read_ahead_full: document.get_bool("readAheadFull").unwrap_or(false),
        })
    }
}

fn read_latency(document: &Document) -> LatencyBuckets {
    let counts = document.get_array("latency").into_iter().flatten();
    let counts: Vec<u64> = counts.map(|count| read_u64(Some(count)).unwrap_or(0)).collect();
    LatencyBuckets::from_counts(&counts).unwrap_or_default()
}

/// The ages in the document count from `seen`.
fn read_applied(document: &Document, seen: i64, now: i64) -> Vec<(String, LastApplied)> {
    let models = document.get_array("readModels").into_iter().flatten().filter_map(Bson::as_document);
    let read = |model: &Document| {
        let ago = model.get_f64("appliedSecondsAgo").ok()?;
        let at = seen - (ago * 1_000.0) as i64;
        let moment = LastApplied { at: WallTime::from_millis(at), seconds_ago: to_seconds(now - at) };
        Some((model.get_str("name").ok()?.to_owned(), moment))
    };
    models.filter_map(read).collect()
}

fn read_problems(document: &Document) -> Vec<PodProblem> {
    let problems = document.get_array("troubles").into_iter().flatten().filter_map(Bson::as_document);
    let read = |problem: &Document| {
        let text = |field| problem.get_str(field).ok().map(str::to_owned);
        Some(PodProblem { service: text("service")?, text: text("text")?, page: text("page") })
    };
    problems.filter_map(read).collect()
}

/// `None` without a measured event.
pub(crate) fn quantiles(latency: &LatencyBuckets) -> Option<LatencyQuantiles> {
    let (p50_seconds, p99_seconds) = (latency.quantile(0.5)?, latency.quantile(0.99)?);
    Some(LatencyQuantiles { p50_seconds, p99_seconds, events: latency.total() })
}

/// Never negative, even if the server's clock jumped back.
pub(crate) fn to_seconds(millis: i64) -> f64 {
    millis.max(0) as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use mongodb::bson::DateTime;

    use super::*;

    fn stored(announcement: &Announcement) -> Document {
        let mut document = announcement.to_document();
        document.extend(doc! {
            "_id": { "pipeline": "shop", "pod": "pod-1" }, "format": FORMAT,
            "seenAt": DateTime::from_millis(10_000), "startedAt": DateTime::from_millis(1_000),
        });
        document
    }

    #[test]
    fn an_announcement_is_read_as_it_was_written() {
        let latency = admin::LatencyHistogram::default();
        latency.record(Duration::from_millis(4));
        let announcement = Announcement {
            version: "0.1.0".into(),
            address: Some("127.0.0.1:8080".into()),
            producer: "publishing".into(),
            consumer: "consuming".into(),
            problems: vec![PodProblem { service: "consumer".into(), text: "busy".into(), page: Some("E0002".into()) }],
            sessions: Some(12),
            unverified: Some(2),
            applied_per_second: Some(0.5),
            applied_ago: vec![("orders.daily".into(), Duration::from_secs(3))],
            latency: latency.snapshot(),
            in_flight: Some(7),
            read_ahead_full: true,
            ..Announcement::default()
        };
        let AnnouncedPod { pod, in_flight, applied, read_ahead_full, latency } =
            AnnouncedPod::read(&stored(&announcement), Some("pod-1"), 11_500).unwrap();
        assert_eq!((pod.id.as_str(), pod.role, pod.silent), ("pod-1", PodRole::Leader, false));
        assert_eq!(pod.last_seen_seconds_ago, 1.5);
        let moment = LastApplied { at: WallTime::from_millis(7_000), seconds_ago: 4.5 };
        assert_eq!(applied, [("orders.daily".to_owned(), moment)]);
        assert_eq!((pod.sessions, pod.applied_per_second, pod.published_per_second), (Some(12), Some(0.5), None));
        assert_eq!((pod.address.as_deref(), pod.generation), (Some("127.0.0.1:8080"), None));
        assert_eq!((pod.unverified, &pod.problems), (Some(2), &announcement.problems));
        assert_eq!((in_flight, read_ahead_full, latency.total()), (Some(7), true, 1));
        assert!(pod.latency.is_some_and(|latency| (0.003..=0.005).contains(&latency.p50_seconds)));
    }

    #[test]
    fn a_pod_with_an_overdue_announcement_is_silent() {
        let document = stored(&Announcement::default());
        let silent = |now| AnnouncedPod::read(&document, None, now).unwrap().pod.silent;
        assert!(!silent(20_000));
        assert!(silent(20_001));
        // The server's clock jumped back: no age is negative.
        assert_eq!(AnnouncedPod::read(&document, None, 5_000).unwrap().pod.last_seen_seconds_ago, 0.0);
    }

    #[test]
    fn a_newer_format_is_ignored() {
        let mut document = stored(&Announcement::default());
        document.insert("format", 2);
        assert_eq!(AnnouncedPod::read(&document, None, 0), None);
    }
}
