//! Several pipelines in one configuration: how entries are merged, and what is refused.

use super::*;

const TWO: &str = "\
format: 1
source: { uri: \"mongodb://localhost\", database: shop, collection: events, sequence: version }
service_bus: { connection_string: \"Endpoint=sb://localhost;UseDevelopmentEmulator=true\" }
producer: { body: json }
pipelines:
  orders:
    source: { collections: [orders, returns] }
    service_bus: { topic: orders }
    read_models: { database: order_views, a: { mirror: true } }
  customers:
    source: { uri_file: /secret }
    service_bus: { topic: customers }
    producer: { body: bson }
    read_models: { a: { mirror: true } }
coordination: { uri: \"mongodb://localhost\" }
";

fn load_all(file: &str) -> Result<Deployment, String> {
    load_all_from(file, &[], &[])
}

/// [`TWO`] with one text replaced by another.
fn changed(from: &str, to: &str) -> Result<Deployment, String> {
    assert!(TWO.contains(from), "{from}");
    load_all(&TWO.replace(from, to))
}

#[test]
fn entries_override_the_top_level_key_by_key() {
    let Deployment { pipelines, is_list } = load_all(TWO).unwrap();
    assert!(is_list);
    let [orders, customers] = &pipelines[..] else { panic!("{pipelines:?}") };
    assert_eq!((&*orders.pipeline, &*customers.pipeline), ("orders", "customers"));
    assert_eq!((&orders.source.collection, orders.source.collections.len()), (&None, 2), "replaces `collection`");
    assert_eq!(customers.source.collection.as_deref(), Some("events"));
    assert_eq!(customers.source_uri.reveal(), "mongodb://user:pass@host", "`uri_file` replaces `uri`");
    assert_eq!((orders.producer.publish.body, customers.producer.publish.body), (BodyFormat::Json, BodyFormat::Bson));
    assert_eq!((&*orders.read_models.database, &*customers.read_models.database), ("order_views", "shop_views"));
    assert_eq!(orders.pod_id, customers.pod_id);
}

#[test]
fn variables_and_flags_reach_one_pipeline_or_all() {
    let variables = [("HEADWATER__PIPELINES__ORDERS__SERVICE_BUS__SUBSCRIPTION", "one")];
    let deployment = load_all_from(TWO, &variables, &["pipelines.customers.audit.enabled=false"]).unwrap();
    let [orders, customers] = &deployment.pipelines[..] else { panic!() };
    assert_eq!((&*orders.service_bus.subscription, &*customers.service_bus.subscription), ("one", "read-models"));
    assert_eq!((orders.audit.enabled, customers.audit.enabled), (true, false));
}

#[test]
fn what_is_printed_can_be_loaded_again() {
    let printed = shown(&TWO.replace("uri_file: /secret", "database: crm"));
    assert!(printed.contains("pipelines:\n  \"orders\":\n    source:\n"), "{printed}");
    let again = load_all(&printed).unwrap();
    assert_eq!(again.pipelines[0].source.collections, ["orders", "returns"]);
    assert_eq!(again.pipelines[1].source.database, "crm");
    assert_eq!(shown(&printed), printed);
}

#[test]
fn one_pipeline_is_selected_by_its_name() {
    let select = |name| load_all(TWO).unwrap().select(name).map(|config| config.pipeline).map_err(|it| it.to_string());
    assert_eq!(select(Some("customers")).unwrap(), "customers");
    assert_eq!(
        select(None).unwrap_err(),
        "the configuration has several pipelines; add --pipeline with one of `orders`, `customers`"
    );
    assert_eq!(
        select(Some("order")).unwrap_err(),
        "there is no pipeline `order`; the configuration has `orders`, `customers`"
    );
}

#[test]
fn problems_have_the_path_and_the_line_of_their_entry() {
    let wrong = TWO.replace("topic: customers", "topic: \"-\"").replace("body: json", "body: xml");
    assert_eq!(
        load_all(&wrong).unwrap_err(),
        "line 4, column 19: `producer.body` is `xml`, but must be `bson` or `json`\n\
         line 12, column 27: `pipelines.customers.service_bus.topic` is `-`, but must be a name of up to 260 letters, digits, `.`, `-`, `_` \
         and `/`, with a letter or digit at both ends, such as `events`"
    );
    let missing = changed("database: shop, ", "").unwrap_err();
    assert_eq!(missing, "not set: `source.database` is missing; write, for example, `shop`", "once for all");
    let missing = TWO.replace("database: shop, ", "").replace("uri_file: /secret", "database: crm");
    assert_eq!(
        load_all(&missing).unwrap_err(),
        "not set: `pipelines.orders.source.database` is missing; write, for example, `shop`"
    );
}

#[test]
fn pipelines_that_disturb_each_other_are_refused() {
    let shared = "line 12, column 27: `pipelines.customers.service_bus.topic` is `orders`, as in pipeline `orders`: each \
                  would apply the events of the other; give each pipeline its own topic";
    assert_eq!(changed("topic: customers", "topic: orders").unwrap_err(), shared);
    // On different servers, the same names are different collections.
    assert!(changed("database: order_views, ", "").is_ok());
}

#[test]
fn read_models_of_another_pipeline_are_not_written_or_captured() {
    let one_server = TWO.replace("uri_file: /secret", "database: crm");
    let error = load_all(&one_server.replace("database: order_views", "database: crm_views")).unwrap_err();
    assert!(
        error.contains("`pipelines.customers.read_models` writes the collection `a` in database `crm_views`"),
        "{error}"
    );
    let error = load_all(&one_server.replace("database: crm", "database: order_views, collection: a")).unwrap_err();
    assert!(
        error.contains("`pipelines.customers.source` captures `order_views.a`, which pipeline `orders` writes"),
        "{error}"
    );
    let error =
        load_all(&one_server.replace("read_models: { a", "read_models: { database: shop, orders: { mirror: true }, a"));
    assert!(error.unwrap_err().contains("writes `shop.orders`, which pipeline `orders` captures"));
}

#[test]
fn settings_of_the_process_stay_at_the_top_level() {
    for (from, to, problem) in [
        ("producer: { body: bson }", "admin: {}", "`pipelines.customers.admin` applies to the whole deployment"),
        ("format: 1", "format: 1\npipeline: shop", "`pipeline` is set together with `pipelines`"),
        ("coordination: { uri: \"mongodb://localhost\" }", "", "`coordination.uri` is missing, but pipelines with"),
    ] {
        let error = changed(from, to).unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
    for (pipelines, problem) in [
        ("{}", "`pipelines` has no pipeline"),
        ("[a]", "`pipelines` is a list, but must be a map from names to settings"),
        ("{ a: 5 }", "`pipelines.a` is `5`, but must be a map of settings"),
    ] {
        let error = load_all(&format!("{MINIMAL}pipelines: {pipelines}\n")).unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn one_entry_is_enough() {
    let deployment = load_all(&format!("{MINIMAL}pipelines: {{ shop: }}\n")).unwrap();
    assert_eq!((deployment.pipelines.len(), deployment.is_list), (1, true));
    assert_eq!(deployment.select(None).unwrap().pipeline, "shop");
}
