//! A DNS server over loopback whose zone changes while it runs.

use super::{eventually, free_address};
use hickory_server::Server;
use hickory_server::net::runtime::{Time, TokioRuntimeProvider};
use hickory_server::proto::rr::rdata::{SOA, SRV};
use hickory_server::proto::rr::{LowerName, Name, RData, Record, RrKey};
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::store::in_memory::InMemoryZoneHandler;
use hickory_server::zone_handler::{AxfrPolicy, Catalog, ZoneType};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The only zone.
const ZONE: &str = "test.";
/// Seconds for which its records hold.
pub const TTL: u32 = 1;

/// A running server of the zone `test`; stops when dropped.
pub struct Dns {
    pub address: SocketAddr,
    zone: Arc<InMemoryZoneHandler<TokioRuntimeProvider>>,
    questions: Arc<AtomicU64>,
    _server: Server<Counted>,
}

/// The server's answers, counted.
struct Counted {
    catalog: Catalog,
    questions: Arc<AtomicU64>,
}

#[async_trait::async_trait]
impl RequestHandler for Counted {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, to: R) -> ResponseInfo {
        let info = self.catalog.handle_request::<R, T>(request, to).await;
        self.questions.fetch_add(1, Ordering::SeqCst);
        info
    }
}

fn name(text: &str) -> Name {
    Name::from_ascii(text).expect("a DNS name")
}

impl Dns {
    /// A server whose zone is empty.
    pub async fn start() -> Self {
        let mut zone = InMemoryZoneHandler::empty(name(ZONE), ZoneType::Primary, AxfrPolicy::Deny);
        let soa = SOA::new(name("ns.test."), name("root.test."), 1, 60, 60, 60, TTL);
        zone.upsert_mut(Record::from_rdata(name(ZONE), TTL, RData::SOA(soa)), 1);
        let zone = Arc::new(zone);
        let mut catalog = Catalog::new();
        catalog.upsert(LowerName::new(&name(ZONE)), vec![zone.clone()]);
        let questions = Arc::new(AtomicU64::new(0));
        let mut server = Server::new(Counted {
            catalog,
            questions: questions.clone(),
        });
        let socket = tokio::net::UdpSocket::bind(free_address()).await;
        let socket = socket.expect("a free port");
        let address = socket.local_addr().expect("bound");
        server.register_socket(socket);
        Self {
            address,
            zone,
            questions,
            _server: server,
        }
    }

    /// Replaces the addresses of `host`; none takes the name out of the zone.
    pub async fn set(&self, host: &str, addresses: &[IpAddr]) {
        let host = name(host);
        self.remove(&host).await;
        for address in addresses {
            let data = match *address {
                IpAddr::V4(ip) => RData::A(ip.into()),
                IpAddr::V6(ip) => RData::AAAA(ip.into()),
            };
            self.zone
                .upsert(Record::from_rdata(host.clone(), TTL, data), 1)
                .await;
        }
    }

    /// Adds an SRV record.
    pub async fn add_service(&self, service: &str, priority: u16, weight: u16, port: u16, host: &str) {
        let data = RData::SRV(SRV::new(priority, weight, port, name(host)));
        self.zone
            .upsert(Record::from_rdata(name(service), TTL, data), 1)
            .await;
    }

    async fn remove(&self, host: &Name) {
        let host = LowerName::new(host);
        let mut records = self.zone.records_mut().await;
        let keys: Vec<RrKey> = records
            .keys()
            .filter(|key| *key.name() == host)
            .cloned()
            .collect();
        for key in keys {
            records.remove(&key);
        }
    }

    /// Waits until `more` further questions have been answered.
    pub async fn asked(&self, more: u64) {
        let before = self.questions.load(Ordering::SeqCst);
        eventually("the name server is asked", async || {
            self.questions.load(Ordering::SeqCst) >= before + more
        })
        .await;
    }
}
