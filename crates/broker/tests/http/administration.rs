//! Administration requests and their responses.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use broker::access::AccessKeys;
use broker::http::{Config, HttpService};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode};
use sha2::Sha256;

use crate::fake_backend::FakeBackend;

pub(crate) struct HttpClient {
    pub(crate) service: HttpService<FakeBackend>,
    pub(crate) namespace: FakeBackend,
}

pub(crate) struct HttpReply {
    pub(crate) status: StatusCode,
    pub(crate) kind: String,
    pub(crate) body: String,
}

impl HttpClient {
    pub(crate) fn new(config: Config) -> Self {
        let namespace = FakeBackend::new();
        Self { service: HttpService::new(namespace.clone(), config), namespace }
    }

    pub(crate) async fn request(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> HttpReply {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost:5300");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap();
        let reply = self.service.handle(request).await;
        let kind = reply.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
        let (status, kind) = (reply.status(), kind.unwrap_or_default());
        let body = reply.into_body().collect().await.unwrap().to_bytes();
        HttpReply { status, kind, body: String::from_utf8(body.to_vec()).unwrap() }
    }

    pub(crate) async fn get(&self, path: &str) -> HttpReply {
        self.request(Method::GET, path, &[], "").await
    }

    async fn put(&self, path: &str, content: &str) -> HttpReply {
        self.request(Method::PUT, path, &[], &entry(content)).await
    }

    async fn update(&self, path: &str, content: &str) -> HttpReply {
        self.request(Method::PUT, path, &[("if-match", "*")], &entry(content)).await
    }

    async fn delete(&self, path: &str) -> HttpReply {
        self.request(Method::DELETE, path, &[], "").await
    }
}

fn entry(content: &str) -> String {
    format!(r#"<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">{content}</content></entry>"#)
}

impl HttpReply {
    /// The text of the first element of this name.
    fn value(&self, name: &str) -> &str {
        let (_, after) =
            self.body.split_once(&format!("<{name}>")).unwrap_or_else(|| panic!("no {name} in {}", self.body));
        after.split_once("</").expect("it ends").0
    }

    fn titles(&self) -> Vec<&str> {
        let entries = self.body.split("<entry").skip(1);
        entries.map(|entry| entry.split(r#"<title type="text">"#).nth(1).unwrap().split('<').next().unwrap()).collect()
    }
}

const QUEUE: &str = "<QueueDescription/>";
const TOPIC: &str = "<TopicDescription/>";
const SUBSCRIPTION: &str = "<SubscriptionDescription/>";

#[tokio::test]
async fn a_queue_is_created_read_changed_and_deleted() {
    let client = HttpClient::new(Config::default());
    let created = client.put("/a%2Fb?api-version=2021-05", QUEUE).await;
    assert_eq!(
        (created.status, created.kind.as_str()),
        (StatusCode::CREATED, "application/atom+xml;type=entry;charset=utf-8")
    );
    assert_eq!(created.value("id"), "http://localhost:5300/a/b?api-version=2021-05");
    assert_eq!(client.get("/A/B").await.value("MaxDeliveryCount"), "10", "paths know no case");

    let changed =
        client.update("/a/b", "<QueueDescription><MaxDeliveryCount>9</MaxDeliveryCount></QueueDescription>").await;
    assert_eq!((changed.status, changed.value("MaxDeliveryCount")), (StatusCode::OK, "9"));
    assert_eq!(client.get("/a/b").await.value("MaxDeliveryCount"), "9");

    let deleted = client.delete("/a/b").await;
    assert_eq!((deleted.status, deleted.body.as_str()), (StatusCode::OK, ""));
    let missing = client.get("/a/b").await;
    assert_eq!((missing.status, missing.kind.as_str()), (StatusCode::NOT_FOUND, "application/xml; charset=utf-8"));
    assert_eq!(
        missing.body,
        "<Error><Code>404</Code><Detail>SubCode=40400. The messaging entity &apos;a/b&apos; could not be found.</Detail></Error>"
    );
}

#[tokio::test]
async fn passive_properties_are_stored_and_returned() {
    let client = HttpClient::new(Config::default());
    let rule =
        "<AuthorizationRule><Rights><AccessRights>Send</AccessRights></Rights><KeyName>k</KeyName></AuthorizationRule>";
    let queue = format!(
        "<QueueDescription><EnableExpress>true</EnableExpress><AuthorizationRules>{rule}</AuthorizationRules></QueueDescription>"
    );
    client.put("/q", &queue).await;
    let read = client.get("/q").await;
    assert_eq!((read.value("EnableExpress"), read.value("KeyName")), ("true", "k"));
    client.update("/q", QUEUE).await;
    assert_eq!(client.get("/q").await.value("EnableExpress"), "false", "an update replaces");
}

#[tokio::test]
async fn invalid_requests_are_refused_with_their_status() {
    let client = HttpClient::new(Config::default());
    client.put("/q", QUEUE).await;
    client.put("/t", TOPIC).await;
    let statuses = [
        (client.put("/q", QUEUE).await, 409, "created twice"),
        (client.put("/Q", TOPIC).await, 409, "a topic where a queue is"),
        (client.update("/none", QUEUE).await, 404, "an update of nothing"),
        (client.delete("/none").await, 404, "a deletion of nothing"),
        (client.update("/q", TOPIC).await, 400, "a queue does not become a topic"),
        (client.put("/none/Subscriptions/s", SUBSCRIPTION).await, 404, "a subscription of nothing"),
        (client.put("/q/Subscriptions/s", SUBSCRIPTION).await, 400, "a subscription of a queue"),
        (client.put("/t/Subscriptions/s", QUEUE).await, 400, "a queue below a topic"),
        (client.put("/x", SUBSCRIPTION).await, 400, "a subscription on its own"),
        (client.put("/", QUEUE).await, 400, "no name"),
        (client.put("/a%20b", QUEUE).await, 400, "a name that may not be"),
        (
            client.put("/x", "<QueueDescription><LockDuration>PT6M</LockDuration></QueueDescription>").await,
            400,
            "out of range",
        ),
        (client.request(Method::PUT, "/x", &[], "<entry").await, 400, "not XML"),
        (client.get("/x?api-version=soon").await, 400, "not a version"),
        (client.request(Method::POST, "/q", &[], "").await, 405, "a verb there is none of"),
        (client.request(Method::PUT, "/$Resources/queues", &[], "").await, 405, "a list is not written"),
        (client.get("/none/Subscriptions").await, 404, "a list of nothing"),
    ];
    for (reply, status, why) in statuses {
        assert_eq!(reply.status.as_u16(), status, "{why}: {}", reply.body);
        assert!(reply.body.starts_with(&format!("<Error><Code>{status}</Code><Detail>")), "{why}: {}", reply.body);
    }
}

#[tokio::test]
async fn immutable_properties_cannot_be_changed() {
    let client = HttpClient::new(Config::default());
    client.put("/q", "<QueueDescription><RequiresSession>true</RequiresSession></QueueDescription>").await;
    let off =
        client.update("/q", "<QueueDescription><RequiresSession>false</RequiresSession></QueueDescription>").await;
    assert_eq!(off.status, StatusCode::BAD_REQUEST);
    assert_eq!(off.value("Detail"), "SubCode=40000. The value for &apos;RequiresSession&apos; cannot be changed.");
    assert_eq!(client.update("/q", QUEUE).await.value("RequiresSession"), "true", "not named: as it was");
}

#[tokio::test]
async fn the_message_size_limit_is_read_only() {
    let client = HttpClient::new(Config::default());
    let sized = |size: u32| {
        format!("<QueueDescription><MaxMessageSizeInKilobytes>{size}</MaxMessageSizeInKilobytes></QueueDescription>")
    };
    let refused = client.put("/q", &sized(1024)).await;
    assert_eq!(
        (refused.status, refused.value("Detail")),
        (
            StatusCode::BAD_REQUEST,
            "SubCode=40000. Bad Request. To know more visit https://aka.ms/sbResourceMgrExceptions. The property \
             &apos;MaxMessageSizeInKilobytes&apos; (1024) cannot be set because the namespace is using &apos;Standard&apos; tier."
        )
    );
    assert_eq!(client.put("/q", QUEUE).await.value("MaxMessageSizeInKilobytes"), "256");
    assert_eq!(client.update("/q", &sized(256)).await.status, StatusCode::OK, "what was shown may be sent back");
    assert_eq!(client.update("/q", &sized(512)).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn lists_are_paged() {
    let client = HttpClient::new(Config::default());
    for name in ["b", "a", "d", "c", "e"] {
        client.put(&format!("/{name}"), QUEUE).await;
    }
    client.put("/t", TOPIC).await;
    let first = client.get("/$Resources/queues?$skip=0&$top=2&api-version=2021-05").await;
    assert_eq!((first.kind.as_str(), first.titles()), ("application/atom+xml;type=feed;charset=utf-8", vec!["a", "b"]));
    assert!(first.body.contains(r#"rel="next" href="http://localhost:5300/$Resources/queues?$skip=2&amp;$top=2&amp;"#));
    let last = client.get("/$Resources/queues?$skip=4&$top=2").await;
    assert_eq!(last.titles(), ["e"]);
    assert!(!last.body.contains("next"));
    let exactly = client.get("/$Resources/queues?$skip=0&$top=5").await;
    assert!(exactly.titles().len() == 5 && !exactly.body.contains("next"), "a full last page is the last");
    assert!(!client.get("/$Resources/queues?$top=0").await.body.contains("next"), "or a reader would never end");
    assert_eq!(client.get("/$Resources/queues?$skip=9").await.titles(), Vec::<&str>::new());
    assert_eq!(client.get("/$Resources/topics").await.titles(), ["t"]);
}

#[tokio::test]
async fn rules_are_created_replaced_listed_and_deleted() {
    let client = HttpClient::new(Config::default());
    client.put("/t", TOPIC).await;
    let created = client.put("/t/subscriptions/s", SUBSCRIPTION).await;
    assert_eq!(created.value("id"), "http://localhost:5300/t/Subscriptions/s?api-version=2024-05");
    assert_eq!(client.get("/t/Subscriptions").await.titles(), ["s"]);
    assert_eq!(client.get("/t").await.value("SubscriptionCount"), "1");

    assert_eq!(client.get("/t/subscriptions/s/rules").await.titles(), ["$Default"]);
    assert_eq!(client.get("/t/subscriptions/s/rules?$skip=1").await.titles(), Vec::<&str>::new());
    let rule = client.get("/t/subscriptions/s/rules/$default").await;
    assert_eq!((rule.status, rule.value("Name"), rule.value("SqlExpression")), (StatusCode::OK, "$Default", "1=1"));

    let sql = |text: &str| {
        format!(
            "<RuleDescription><Filter type='SqlFilter'><SqlExpression>{text}</SqlExpression></Filter><Name>x</Name></RuleDescription>"
        )
    };
    let path = "/t/Subscriptions/s/Rules/r";
    let created = client.put(path, &sql("a = 1")).await;
    assert_eq!((created.status, created.value("Name")), (StatusCode::CREATED, "r"), "the path names it");
    let labelled = "<RuleDescription><Filter type='CorrelationFilter'><Label>a</Label></Filter></RuleDescription>";
    assert_eq!(client.put("/t/Subscriptions/s/Rules/label", labelled).await.status, StatusCode::CREATED);
    let topic = client.get("/t").await;
    assert_eq!((topic.value("SqlFilterCount"), topic.value("CorrelationFilterCount")), ("2", "1"));
    assert_eq!(client.get("/t/subscriptions/s/rules").await.titles(), ["$Default", "label", "r"]);
    assert_eq!(client.get("/t/subscriptions/s/rules?$skip=1&$top=1").await.titles(), ["label"]);
    assert_eq!(client.update(path, &sql("a = 2")).await.status, StatusCode::OK);
    assert_eq!(client.get(path).await.value("SqlExpression"), "a = 2");
    let refused = client.put("/t/Subscriptions/s/Rules/wrong", &sql("a = )")).await;
    let detail = "the filter has an error at character 5: `)` is not expected here";
    assert!(refused.value("Detail").ends_with(detail), "{}", refused.body);
    for (reply, status) in [
        (refused, 400),
        (client.put("/t/Subscriptions/s/Rules/R", &sql("a = 1")).await, 409),
        (client.update("/t/Subscriptions/s/Rules/none", &sql("a = 1")).await, 404),
        (client.get("/t/Subscriptions/s/Rules/none").await, 404),
        (client.delete("/t/Subscriptions/s/Rules/none").await, 404),
        (client.get("/t/Subscriptions/none/Rules").await, 404),
        (client.put(path, QUEUE).await, 400),
        (client.delete(path).await, 200),
        (client.delete("/t/Subscriptions/s/Rules/$Default").await, 200),
    ] {
        assert_eq!(reply.status.as_u16(), status, "{}", reply.body);
    }
    assert_eq!(client.get("/t/subscriptions/s/rules").await.titles(), ["label"]);
}

#[tokio::test]
async fn a_subscription_is_created_with_its_first_rule() {
    let client = HttpClient::new(Config::default());
    client.put("/t", TOPIC).await;
    let with = |rule: &str| {
        format!(
            "<SubscriptionDescription><DefaultRuleDescription>{rule}</DefaultRuleDescription></SubscriptionDescription>"
        )
    };
    let red = with("<Filter type='FalseFilter'/><Name>red</Name>");
    assert_eq!(client.put("/t/Subscriptions/s", &red).await.status, StatusCode::CREATED);
    assert_eq!(client.get("/t/Subscriptions/s/Rules").await.titles(), ["red"]);
    let invalid = with("<Filter type='SqlFilter'><SqlExpression>a</SqlExpression></Filter><Name>r</Name>");
    assert_eq!(client.put("/t/Subscriptions/none", &invalid).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(client.get("/t/Subscriptions").await.titles(), ["s"], "nothing is created");
}

#[tokio::test]
async fn namespace_info_and_health_are_reported() {
    let client = HttpClient::new(Config::default());
    let info = client.get("/$namespaceinfo?api-version=2017-04").await;
    assert_eq!((info.value("Name"), info.value("MessagingSKU")), ("sbemulatorns", "Standard"));
    let well = client.get("/health").await;
    assert_eq!((well.status, well.kind.as_str()), (StatusCode::OK, "application/json"));
    assert_eq!(well.body, r#"{"status":"healthy","message":"Service is healthy."}"#);
    client.namespace.with(|state| state.healthy = false);
    assert_eq!(client.get("/health").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(client.request(Method::PUT, "/health", &[], "").await.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn links_of_a_tls_connection_use_https() {
    let mut client = HttpClient::new(Config::default());
    client.service = client.service.clone().over_tls();
    assert_eq!(client.put("/q", QUEUE).await.value("id"), "https://localhost:5300/q?api-version=2024-05");
}

/// A key that manages `source` only, and one that manages `target` only.
fn two_managers() -> Config {
    let key =
        |name: &str| format!(r#"{{"name": "{name}", "key": "{name}", "rights": ["Manage"], "entity": "{name}"}}"#);
    let root = r#"{"name": "root", "key": "root", "rights": ["Manage"]}"#;
    let file = format!(r#"{{"keys": [{}, {}, {root}]}}"#, key("source"), key("target"));
    Config { keys: Some(AccessKeys::parse(&file).unwrap().into()), ..Config::default() }
}

/// A token of the key `name`, for the whole namespace as by SDKs.
fn token(name: &str) -> String {
    let (resource, expiry) = ("http%3A%2F%2Flocalhost", "4102444800");
    let mut mac = Hmac::<Sha256>::new_from_slice(name.as_bytes()).unwrap();
    mac.update(format!("{resource}\n{expiry}").as_bytes());
    let signature = BASE64_STANDARD.encode(mac.finalize().into_bytes());
    let signature = signature.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    format!("SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={name}")
}

#[tokio::test]
async fn forwarding_needs_manage_on_its_destination() {
    let client = HttpClient::new(two_managers());
    let (root, source, target) = (token("root"), token("source"), token("target"));
    let root = [("authorization", root.as_str())];
    for path in ["/source", "/target"] {
        assert_eq!(client.request(Method::PUT, path, &root, &entry(QUEUE)).await.status, 201);
    }
    for (property, header) in [
        ("ForwardTo", "ServiceBusSupplementaryAuthorization"),
        ("ForwardDeadLetteredMessagesTo", "ServiceBusDlqSupplementaryAuthorization"),
    ] {
        let body = entry(&format!("<QueueDescription><{property}>target</{property}></QueueDescription>"));
        let own = [("authorization", source.as_str()), ("if-match", "*")];
        let refused = client.request(Method::PUT, "/source", &own, &body).await;
        assert_eq!(refused.status, 401, "{}", refused.body);
        assert!(refused.body.contains("Manage is required on the forwarding destination"), "{}", refused.body);
        let both = [own[0], own[1], (header, target.as_str())];
        assert_eq!(client.request(Method::PUT, "/source", &both, &body).await.status, 200);
        // A change of another property is no change of the destination.
        assert_eq!(client.request(Method::PUT, "/source", &own, &body).await.status, 200);
        let unset = client.request(Method::PUT, "/source", &own, &entry(QUEUE)).await;
        assert_eq!(unset.status, 200, "{}", unset.body);
        assert_eq!(client.request(Method::PUT, "/source", &[root[0], own[1]], &body).await.status, 200);
        assert_eq!(client.request(Method::PUT, "/source", &own, &entry(QUEUE)).await.status, 200);
    }
}
