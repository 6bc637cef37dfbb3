//! The calls as gRPC services.

use tonic::service::Routes;
use tonic::{Request, Response, Status, async_trait};
use xmtp_proto::backend::v1::configuration_service_server::{
    ConfigurationService, ConfigurationServiceServer,
};
use xmtp_proto::backend::v1::identity_service_server::{IdentityService, IdentityServiceServer};
use xmtp_proto::backend::v1::publish_service_server::{PublishService, PublishServiceServer};
use xmtp_proto::backend::v1::query_service_server::{QueryService, QueryServiceServer};
use xmtp_proto::backend::v1::{
    GetConfigurationRequest, GetConfigurationResponse, GetInboxIdsRequest, GetInboxIdsResponse,
    PublishRequest, PublishResponse, QueryNewestRequest, QueryNewestResponse, QueryRequest,
    QueryResponse, VerifySmartContractWalletSignaturesRequest,
    VerifySmartContractWalletSignaturesResponse,
};

use super::Services;
use super::status::complete;
use super::streams::SubscriptionServer;
use crate::limits::OPEN_REQUEST_BYTES;

/// The names of the services, as health reports them.
pub(crate) const SERVICE_NAMES: [&str; 5] = [
    xmtp_proto::backend::v1::publish_service_server::SERVICE_NAME,
    xmtp_proto::backend::v1::query_service_server::SERVICE_NAME,
    xmtp_proto::backend::v1::subscription_service_server::SERVICE_NAME,
    xmtp_proto::backend::v1::identity_service_server::SERVICE_NAME,
    xmtp_proto::backend::v1::configuration_service_server::SERVICE_NAME,
];

/// Builds the routes of all services, bounded by the limits of the server.
pub(crate) fn routes(services: &Services) -> Routes {
    let limits = &services.inner.limits;
    let (request, response) = (
        bytes(limits.max_request_bytes),
        bytes(limits.max_response_bytes),
    );
    let grpc = || Grpc(services.clone());
    macro_rules! bounded {
        ($server:ident) => {
            $server::new(grpc())
                .max_decoding_message_size(request)
                .max_encoding_message_size(response)
        };
    }
    Routes::new(bounded!(PublishServiceServer))
        .add_service(bounded!(QueryServiceServer))
        .add_service(SubscriptionServer::new(services.clone(), request, response))
        .add_service(bounded!(IdentityServiceServer))
        .add_service(
            ConfigurationServiceServer::new(grpc())
                .max_decoding_message_size(request.min(OPEN_REQUEST_BYTES))
                .max_encoding_message_size(response),
        )
}

fn bytes(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// The adapter from gRPC to the calls.
///
/// Every failure of a call passes [`complete`], so that behind this adapter a failure without a
/// reason is one of the transport.
struct Grpc(Services);

fn answer<T>(result: Result<T, Status>) -> Result<Response<T>, Status> {
    result.map(Response::new).map_err(complete)
}

#[async_trait]
impl PublishService for Grpc {
    async fn publish(
        &self,
        request: Request<PublishRequest>,
    ) -> Result<Response<PublishResponse>, Status> {
        answer(self.0.publish(request.into_inner()).await)
    }
}

#[async_trait]
impl QueryService for Grpc {
    async fn query(
        &self,
        request: Request<QueryRequest>,
    ) -> Result<Response<QueryResponse>, Status> {
        answer(self.0.query(request.into_inner()).await)
    }

    async fn query_newest(
        &self,
        request: Request<QueryNewestRequest>,
    ) -> Result<Response<QueryNewestResponse>, Status> {
        answer(self.0.query_newest(request.into_inner()).await)
    }
}

#[async_trait]
impl IdentityService for Grpc {
    async fn get_inbox_ids(
        &self,
        request: Request<GetInboxIdsRequest>,
    ) -> Result<Response<GetInboxIdsResponse>, Status> {
        answer(self.0.inbox_ids(request.into_inner()).await)
    }

    async fn verify_smart_contract_wallet_signatures(
        &self,
        request: Request<VerifySmartContractWalletSignaturesRequest>,
    ) -> Result<Response<VerifySmartContractWalletSignaturesResponse>, Status> {
        let request = request.into_inner();
        answer(
            self.0
                .verify_smart_contract_wallet_signatures(request)
                .await,
        )
    }
}

#[async_trait]
impl ConfigurationService for Grpc {
    async fn get_configuration(
        &self,
        request: Request<GetConfigurationRequest>,
    ) -> Result<Response<GetConfigurationResponse>, Status> {
        answer(self.0.configuration(request.into_inner()).await)
    }
}
