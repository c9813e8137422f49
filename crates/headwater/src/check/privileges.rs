//! The rights of the user, as the server lists them. Some rights cannot be tried without a write.

use mongodb::Client;
use mongodb::bson::{Document, doc};

/// The privileges of the user that is logged in.
pub(super) struct UserPrivileges(Vec<Document>);

impl UserPrivileges {
    /// `None`: nobody is logged in, so the server does not ask for rights.
    pub(super) async fn read(client: &Client) -> mongodb::error::Result<Option<Self>> {
        let status =
            client.database("admin").run_command(doc! { "connectionStatus": 1, "showPrivileges": true }).await?;
        Ok(Self::parse(&status))
    }

    fn parse(status: &Document) -> Option<Self> {
        let info = status.get_document("authInfo").ok()?;
        if info.get_array("authenticatedUsers").is_ok_and(Vec::is_empty) {
            return None;
        }
        let listed = info.get_array("authenticatedUserPrivileges").ok()?;
        Some(Self(listed.iter().filter_map(|privilege| privilege.as_document().cloned()).collect()))
    }

    /// True if a privilege for the collection, its database or all databases has the action.
    pub(super) fn allow(&self, database: &str, collection: &str, action: &str) -> bool {
        self.0.iter().any(|privilege| {
            let actions = privilege.get_array("actions").into_iter().flatten();
            actions.filter_map(|name| name.as_str()).any(|name| name == action || name == "anyAction")
                && privilege.get_document("resource").is_ok_and(|resource| covers(resource, database, collection))
        })
    }
}

/// An empty name stands for every database or collection.
fn covers(resource: &Document, database: &str, collection: &str) -> bool {
    let matches = |field, wanted| resource.get_str(field).is_ok_and(|name| name.is_empty() || name == wanted);
    resource.get_bool("anyResource").unwrap_or(false) || matches("db", database) && matches("collection", collection)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn privileges(resource: Document, actions: &[&str]) -> UserPrivileges {
        let status = doc! { "authInfo": {
            "authenticatedUsers": [{ "user": "pod", "db": "admin" }],
            "authenticatedUserPrivileges": [{ "resource": resource, "actions": actions }],
        } };
        UserPrivileges::parse(&status).unwrap()
    }

    #[test]
    fn a_privilege_covers_its_resource_only() {
        let insert = |resource| privileges(resource, &["find", "insert"]).allow("shop", "events", "insert");
        assert!(insert(doc! { "db": "shop", "collection": "events" }));
        assert!(insert(doc! { "db": "shop", "collection": "" }));
        assert!(insert(doc! { "db": "", "collection": "" }));
        assert!(insert(doc! { "anyResource": true }));
        assert!(!insert(doc! { "db": "shop", "collection": "orders" }));
        assert!(!insert(doc! { "db": "other", "collection": "" }));
        assert!(!insert(doc! { "cluster": true }));
        assert!(!privileges(doc! { "db": "shop", "collection": "" }, &["find"]).allow("shop", "events", "insert"));
    }

    #[test]
    fn without_a_user_there_is_nothing_to_compare() {
        let status = doc! { "authInfo": { "authenticatedUsers": [], "authenticatedUserPrivileges": [] } };
        assert!(UserPrivileges::parse(&status).is_none());
    }
}
