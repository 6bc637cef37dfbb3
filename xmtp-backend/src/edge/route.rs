//! The calls of the contract by their path, as telemetry names them.

use xmtp_proto::backend::v1::{
    configuration_service_server, identity_service_server, publish_service_server,
    query_service_server, subscription_service_server,
};

use crate::telemetry::metrics::CallLabels;

const UNARY: &str = "unary";
const SERVER_STREAM: &str = "server_stream";
const BIDI_STREAM: &str = "bidi_stream";

/// What stands for a call that is not of the contract; its path is never shown.
const UNKNOWN: Route = Route {
    kind: "unknown",
    service: "unknown",
    method: "unknown",
};

/// A call of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    kind: &'static str,
    service: &'static str,
    method: &'static str,
}

const fn route(service: &'static str, method: &'static str, kind: &'static str) -> Route {
    Route {
        kind,
        service,
        method,
    }
}

/// Every call of every service.
const ROUTES: [Route; 8] = [
    route(publish_service_server::SERVICE_NAME, "Publish", UNARY),
    route(query_service_server::SERVICE_NAME, "Query", UNARY),
    route(query_service_server::SERVICE_NAME, "QueryNewest", UNARY),
    route(
        subscription_service_server::SERVICE_NAME,
        "Subscribe",
        BIDI_STREAM,
    ),
    route(
        subscription_service_server::SERVICE_NAME,
        "SubscribeStatic",
        SERVER_STREAM,
    ),
    route(identity_service_server::SERVICE_NAME, "GetInboxIds", UNARY),
    route(
        identity_service_server::SERVICE_NAME,
        "VerifySmartContractWalletSignatures",
        UNARY,
    ),
    route(
        configuration_service_server::SERVICE_NAME,
        "GetConfiguration",
        UNARY,
    ),
];

const HEALTH_SERVICE: &str = "grpc.health.v1.Health";

impl Route {
    /// Finds the call of a path; none is health, which nobody counts.
    pub(super) fn of(path: &str) -> Option<Self> {
        let call = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        let Some((service, method)) = call else {
            return Some(UNKNOWN);
        };
        if service == HEALTH_SERVICE {
            return None;
        }
        let is_it = |route: &&Self| route.service == service && route.method == method;
        Some(ROUTES.iter().find(is_it).copied().unwrap_or(UNKNOWN))
    }

    pub(super) fn labels(self) -> CallLabels {
        [
            ("grpc_type", self.kind),
            ("grpc_service", self.service),
            ("grpc_method", self.method),
        ]
    }

    pub(super) fn service(self) -> &'static str {
        self.service
    }

    pub(super) fn method(self) -> &'static str {
        self.method
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::SERVICE_NAMES;

    /// covers: CFG-022
    #[test]
    fn every_service_has_its_routes() {
        for service in SERVICE_NAMES {
            let mut found = ROUTES.iter().filter(|route| route.service == service);
            assert!(found.next().is_some(), "{service} has no route");
        }
        for found in ROUTES {
            let path = format!("/{}/{}", found.service, found.method);
            assert_eq!(Route::of(&path), Some(found));
        }
    }

    #[test]
    fn other_paths_are_unknown_and_health_is_not_counted() {
        assert_eq!(Route::of("/grpc.health.v1.Health/Watch"), None);
        for path in ["", "/", "/x", "/x/y", "/xmtp.backend.v1.QueryService/Get"] {
            assert_eq!(Route::of(path), Some(UNKNOWN), "{path}");
        }
    }
}
