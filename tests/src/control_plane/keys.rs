//! Certificates, tokens and kubeconfigs of a control plane that exists for one test.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer},
    },
};

/// The tokens of users that the API server knows from the start (`--token-auth-file`).
pub const ADMIN_TOKEN: &str = "admin-token";
/// See [`ADMIN_TOKEN`].
pub const MANAGER_TOKEN: &str = "manager-token";

/// The keys, as files in one directory, and for the test's own servers.
pub struct Keys {
    directory: PathBuf,
    ca: CertificateDer<'static>,
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Keys {
    /// Makes keys for servers with these addresses.
    ///
    /// # Errors
    /// If they cannot be made or written.
    pub fn make(directory: &Path, addresses: &[IpAddr]) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "node-lb tests");
        let ca_key = KeyPair::generate()?;
        let ca = params.self_signed(&ca_key)?;
        let issuer = Issuer::new(params, ca_key);

        let names: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names)?;
        params
            .distinguished_name
            .push(DnType::CommonName, "kube-apiserver");
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;

        let tokens = format!(
            "{ADMIN_TOKEN},admin,admin,system:masters\n\
             {MANAGER_TOKEN},system:kube-controller-manager,system:kube-controller-manager\n"
        );
        let keys = Self {
            directory: directory.to_owned(),
            ca: ca.der().clone(),
            certificate: certificate.der().clone(),
            key: key.serialize_der(),
        };
        keys.write("ca.crt", &ca.pem())?;
        keys.write("api.crt", &certificate.pem())?;
        keys.write("api.key", &key.serialize_pem())?;
        let accounts = KeyPair::generate()?;
        keys.write("service-accounts.key", &accounts.serialize_pem())?;
        keys.write("service-accounts.pub", &accounts.public_key_pem())?;
        keys.write("tokens.csv", &tokens)?;
        Ok(keys)
    }

    /// The path of one of the files.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes a file beside the keys, atomically.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let (fresh, path) = (self.path(&format!(".{name}")), self.path(name));
        fs::write(&fresh, text)
            .and_then(|()| fs::rename(&fresh, &path))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// A kubeconfig; `user` is its `user` object as YAML, for example `{ token: abc }`.
    pub fn kubeconfig(&self, server: &str, user: &str) -> String {
        let ca = self.path("ca.crt");
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{ name: c, cluster: {{ server: '{server}', \
             certificate-authority: {} }} }}]\n\
             users: [{{ name: u, user: {user} }}]\n\
             contexts: [{{ name: c, context: {{ cluster: c, user: u }} }}]\n",
            ca.display()
        )
    }

    /// A server's side of TLS.
    ///
    /// # Errors
    /// If rustls does not accept the keys.
    pub fn acceptor(&self) -> Result<TlsAcceptor> {
        let key = PrivateKeyDer::try_from(self.key.clone()).map_err(anyhow::Error::msg)?;
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], key)?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// A client's side of TLS that trusts these keys only.
    ///
    /// # Errors
    /// If rustls does not accept the keys.
    pub fn connector(&self) -> Result<TlsConnector> {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.clone())?;
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(TlsConnector::from(Arc::new(config)))
    }
}
