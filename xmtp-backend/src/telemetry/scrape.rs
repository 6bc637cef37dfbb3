//! Serves the numbers to whoever scrapes them, on a port of its own.
//!
//! The port is meant for the operator's network; it takes `GET /metrics` and nothing else.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tonic::body::Body;

use super::metrics;
use crate::edge::{Listener, Serving};
use crate::limits::{ANSWER_TIME, METRICS_HTTP2_STREAMS, METRICS_UPKEEP};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// The listener of one server.
///
/// - Dropping it closes the port.
#[derive(Debug)]
pub(crate) struct Scrape {
    address: SocketAddr,
    serving: Serving,
    upkeep: JoinHandle<()>,
    _stop: watch::Sender<bool>,
}

impl Drop for Scrape {
    fn drop(&mut self) {
        self.serving.abort();
        self.upkeep.abort();
    }
}

impl Scrape {
    pub(crate) async fn start(listen: SocketAddr) -> io::Result<Self> {
        let listener = Listener::bind(listen).await?;
        let address = listener.address();
        let stop = watch::Sender::new(false);
        let service = tower::service_fn(|request: Request<Body>| async move {
            Ok::<_, Infallible>(answer(request.method(), request.uri().path()))
        });
        let serving = listener.serve(
            service,
            METRICS_HTTP2_STREAMS,
            ANSWER_TIME,
            stop.subscribe(),
        );
        tracing::info!(%address, "metrics are served");
        Ok(Self {
            address,
            serving,
            upkeep: tokio::spawn(keep_up()),
            _stop: stop,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

fn answer(method: &Method, path: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    let handle = metrics::handle();
    match (method, path, handle) {
        (&Method::GET, "/metrics", Some(handle)) => {
            let text = Bytes::from(handle.render());
            response.headers_mut().insert(CONTENT_TYPE, TEXT);
            response.map(|_| Body::new(Full::new(text)))
        }
        _ => {
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    }
}

/// Sorts what was measured into its buckets, so that it does not pile up when nobody scrapes.
async fn keep_up() {
    let mut ticks = interval(METRICS_UPKEEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Some(handle) = metrics::handle() {
            handle.run_upkeep();
        }
    }
}
