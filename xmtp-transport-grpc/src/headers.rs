//! The headers of every request.

use tonic::metadata::AsciiMetadataValue;
use tonic::service::Interceptor;
use tonic::{Request, Status};
use xmtp_proto::COMPATIBLE_LIBXMTP_VERSION;

/// Names the release whose rules the client follows.
const LIBXMTP_VERSION: &str = "x-libxmtp-version";

/// Names the application and its version.
const APP_VERSION: &str = "x-app-version";

/// Adds the headers to a request.
#[derive(Clone, Debug)]
pub(crate) struct Headers {
    app_version: Option<AsciiMetadataValue>,
}

impl Headers {
    pub(crate) fn new(app_version: Option<AsciiMetadataValue>) -> Self {
        Self { app_version }
    }
}

impl Interceptor for Headers {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let version = AsciiMetadataValue::from_static(COMPATIBLE_LIBXMTP_VERSION);
        request.metadata_mut().insert(LIBXMTP_VERSION, version);
        if let Some(version) = &self.app_version {
            request.metadata_mut().insert(APP_VERSION, version.clone());
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_names_the_release_and_the_application() {
        let mut headers = Headers::new(Some(AsciiMetadataValue::from_static("notes/1.4.0")));
        let request = headers
            .call(Request::new(()))
            .expect("headers never refuse");
        let value = |name| {
            request
                .metadata()
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        assert_eq!(value("x-libxmtp-version"), Some(COMPATIBLE_LIBXMTP_VERSION));
        assert_eq!(value("x-app-version"), Some("notes/1.4.0"));
    }
}
