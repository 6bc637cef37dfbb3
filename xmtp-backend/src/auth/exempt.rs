//! The paths that need no credential.

/// The health service and the configuration, and nothing else: a client asks the one before it
/// connects and the other before it knows that it needs a credential (CFG-020, CFG-093).
const PUBLIC_PREFIXES: [&str; 2] = ["/grpc.health.v1.", "/xmtp.backend.v1.ConfigurationService/"];

/// Reports whether a path is served without a credential.
///
/// - Compares the bytes as they were sent: nothing is decoded and no case is folded, as the router
///   does neither.
pub(super) fn is_public(path: &str) -> bool {
    PUBLIC_PREFIXES
        .iter()
        .any(|prefix| path.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// covers: CFG-093
    #[test]
    fn exactly_two_prefixes_are_public() {
        for public in [
            "/grpc.health.v1.Health/Check",
            "/grpc.health.v1.Health/Watch",
            "/grpc.health.v1.Health/Unknown",
            "/xmtp.backend.v1.ConfigurationService/GetConfiguration",
            "/xmtp.backend.v1.ConfigurationService/Unknown",
        ] {
            assert!(is_public(public), "{public}");
        }
        for closed in [
            "",
            "/",
            "*",
            "/grpc.health.v1",
            "/grpc.health.v10.Health/Check",
            "/grpc.health.v2.Health/Check",
            "/GRPC.health.v1.Health/Check",
            "//grpc.health.v1.Health/Check",
            "/grpc%2Ehealth.v1.Health/Check",
            "/x/grpc.health.v1.Health/Check",
            "/xmtp.backend.v1.ConfigurationService",
            "/xmtp.backend.v1.ConfigurationServices/GetConfiguration",
            "/xmtp.backend.v2.ConfigurationService/GetConfiguration",
            "/xmtp.backend.v1.PublishService/Publish",
            "/xmtp.backend.v1.QueryService/Query",
            "/xmtp.backend.v1.QueryService/QueryNewest",
            "/xmtp.backend.v1.SubscriptionService/Subscribe",
            "/xmtp.backend.v1.SubscriptionService/SubscribeStatic",
            "/xmtp.backend.v1.IdentityService/GetInboxIds",
            "/xmtp.backend.v1.IdentityService/VerifySmartContractWalletSignatures",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        ] {
            assert!(!is_public(closed), "{closed}");
        }
    }
}
