//! The standard health service: one status for the server and each of its services.

use std::sync::Arc;

use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::sync::watch;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health as HealthCalls, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::grpc::SERVICE_NAMES;
use super::status::Failure;
use crate::limits::OPEN_REQUEST_BYTES;

/// Whether the server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Serves,
    Refuses,
    /// It refuses, and whoever watches is told so and nothing more.
    Stops,
}

impl State {
    fn status(self) -> ServingStatus {
        match self {
            Self::Serves => ServingStatus::Serving,
            Self::Refuses | Self::Stops => ServingStatus::NotServing,
        }
    }
}

/// What callers are told of the server's health; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Health(Arc<watch::Sender<State>>);

impl Health {
    /// Makes the health of a server that serves.
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(State::Serves)))
    }

    /// Says that nobody is served.
    pub(crate) fn refuse(&self) {
        self.0.send_if_modified(|state| {
            let is_news = *state == State::Serves;
            *state = if is_news { State::Refuses } else { *state };
            is_news
        });
    }

    /// Says that nobody will be served any more, which ends all watches.
    pub(crate) fn stop(&self) {
        self.0.send_replace(State::Stops);
    }

    pub(crate) fn service(&self) -> HealthServer<Self> {
        let calls = HealthServer::new(self.clone());
        calls.max_decoding_message_size(OPEN_REQUEST_BYTES)
    }
}

/// Refuses the name of an unknown service; the empty one stands for the server.
fn known(request: &HealthCheckRequest) -> Result<(), Status> {
    let name = request.service.as_str();
    match name.is_empty() || SERVICE_NAMES.contains(&name) {
        true => Ok(()),
        false => Err(Failure::NotFound.status("there is no service of that name")),
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    let status = status.into();
    HealthCheckResponse { status }
}

#[async_trait]
impl HealthCalls for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        known(request.get_ref())?;
        Ok(Response::new(response(self.0.borrow().status())))
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        known(request.get_ref())?;
        let news = stream::unfold((self.0.subscribe(), None), |(mut state, told)| async move {
            loop {
                let now = *state.borrow_and_update();
                if told != Some(now.status()) {
                    let status = now.status();
                    return Some((Ok(response(status)), (state, Some(status))));
                }
                if now == State::Stops || state.changed().await.is_err() {
                    return None;
                }
            }
        });
        Ok(Response::new(news.boxed()))
    }
}
