"""Broker keys of security and of tiered storage, most of which have no effect yet.

Owns only this table; `config.key_table` defines its format. Facts are those of Kafka 4.3.1, descriptions our own.
"""

from __future__ import annotations

from typing import Final

TABLE: Final = """
connections.max.reauth.ms long 0 medium
    Milliseconds after which a connection must authenticate again; 0 disables it.
sasl.server.max.receive.size int 524288 medium
    Largest SASL message in bytes before a client is authenticated.
security.providers string null low refused:class
    Classes of security providers.
principal.builder.class class \
org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder medium per-broker refused:class
    Class that determines the principal of a connection.
ssl.client.auth string none medium in:required,requested,none per-broker
    Whether clients must present a certificate.
ssl.principal.mapping.rules string DEFAULT low
    Rules that map certificate names to user names.
ssl.allow.dn.changes boolean false low
    Whether a new certificate may have another distinguished name.
ssl.allow.san.changes boolean false low
    Whether a new certificate may have other alternative names.
ssl.protocol string TLSv1.3 medium per-broker inert
    Default TLS protocol.
ssl.provider string null medium per-broker inert
    Provider of TLS.
ssl.enabled.protocols list TLSv1.2,TLSv1.3 medium list per-broker
    Enabled TLS protocols.
ssl.keystore.type string JKS medium per-broker
    Format of the key store.
ssl.keystore.location string null medium per-broker
    File of the key store.
ssl.keystore.password password null medium per-broker
    Password of the key store.
ssl.key.password password null medium per-broker
    Password of the private key.
ssl.keystore.key password null medium per-broker
    The private key itself, in PEM.
ssl.keystore.certificate.chain password null medium per-broker
    The certificate chain itself, in PEM.
ssl.truststore.type string JKS medium per-broker
    Format of the trust store.
ssl.truststore.location string null medium per-broker
    File of the trust store.
ssl.truststore.password password null medium per-broker
    Password of the trust store.
ssl.truststore.certificates password null medium per-broker
    The trusted certificates themselves, in PEM.
ssl.keymanager.algorithm string SunX509 medium per-broker inert
    Algorithm of the key manager.
ssl.trustmanager.algorithm string PKIX medium per-broker inert
    Algorithm of the trust manager.
ssl.endpoint.identification.algorithm string https low per-broker
    How a server's name is checked against its certificate.
ssl.secure.random.implementation string null low per-broker inert
    Source of random numbers for TLS.
ssl.cipher.suites list "" medium list per-broker
    Enabled cipher suites; empty is the default set.
ssl.engine.factory.class class null low per-broker inert
    Class that creates TLS engines.
sasl.mechanism.inter.broker.protocol string GSSAPI medium per-broker
    SASL mechanism between brokers.
sasl.enabled.mechanisms list GSSAPI medium list per-broker
    SASL mechanisms enabled for clients.
sasl.server.callback.handler.class class null medium inert
    Class that verifies credentials.
sasl.kerberos.principal.to.local.rules list DEFAULT medium list per-broker inert
    Rules that map Kerberos names to user names.
sasl.jaas.config password null medium per-broker
    JAAS login configuration.
sasl.client.callback.handler.class class null medium inert
    Class that supplies credentials.
sasl.login.class class null medium inert
    Class that logs in.
sasl.login.callback.handler.class class null medium inert
    Callback handler class for the login.
sasl.kerberos.service.name string null medium per-broker inert
    Name of the Kerberos service.
sasl.kerberos.kinit.cmd string /usr/bin/kinit medium per-broker inert
    Command that obtains a Kerberos ticket.
sasl.kerberos.ticket.renew.window.factor double 0.8 medium per-broker inert
    Fraction of a ticket's lifetime after which it is renewed.
sasl.kerberos.ticket.renew.jitter double 0.05 medium per-broker inert
    Random jitter of the renewal time, as a fraction.
sasl.kerberos.min.time.before.relogin long 60000 medium per-broker inert
    Minimum milliseconds between logins.
sasl.login.refresh.window.factor double 0.8 medium per-broker inert
    Fraction of a credential's lifetime after which it is renewed.
sasl.login.refresh.window.jitter double 0.05 medium per-broker inert
    Random jitter of that time, as a fraction.
sasl.login.refresh.min.period.seconds short 60 medium per-broker inert
    Minimum seconds before a credential is renewed.
sasl.login.refresh.buffer.seconds short 300 medium per-broker inert
    Seconds before expiry by which a credential must be renewed.
sasl.login.connect.timeout.ms int null low inert
    Timeout in milliseconds for connecting to the identity provider.
sasl.login.read.timeout.ms int null low inert
    Timeout in milliseconds for responses of the identity provider.
sasl.login.retry.backoff.max.ms long 10000 low inert
    Maximum pause in milliseconds between login attempts.
sasl.login.retry.backoff.ms long 100 low inert
    Initial pause in milliseconds between login attempts.
sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever medium inert
    Class that retrieves tokens.
sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator medium inert
    Class that validates tokens.
sasl.oauthbearer.scope string null medium inert
    Requested scope.
sasl.oauthbearer.client.credentials.client.id string null medium inert
    Client id for the identity provider.
sasl.oauthbearer.client.credentials.client.secret password null medium inert
    Client secret for the identity provider.
sasl.oauthbearer.assertion.algorithm string RS256 medium in~:ES256,RS256 inert
    Algorithm that signs assertions.
sasl.oauthbearer.assertion.claim.aud string null medium inert
    Audience claim of assertions.
sasl.oauthbearer.assertion.claim.exp.seconds int 300 low 0..86400 inert
    Lifetime of assertions in seconds.
sasl.oauthbearer.assertion.claim.iss string null medium inert
    Issuer claim of assertions.
sasl.oauthbearer.assertion.claim.jti.include boolean false medium inert
    Whether assertions include an id.
sasl.oauthbearer.assertion.claim.nbf.seconds int 60 low 0..3600 inert
    Seconds in the past from which an assertion is valid.
sasl.oauthbearer.assertion.claim.sub string null medium inert
    Subject claim of assertions.
sasl.oauthbearer.assertion.file string null medium inert
    File of a prepared assertion.
sasl.oauthbearer.assertion.private.key.file string null medium inert
    File of the key that signs assertions.
sasl.oauthbearer.assertion.private.key.passphrase password null medium inert
    Passphrase of that key.
sasl.oauthbearer.assertion.template.file string null medium inert
    File with additional claims of assertions.
sasl.oauthbearer.scope.claim.name string scope low inert
    Name of the scope claim.
sasl.oauthbearer.sub.claim.name string sub low
    Name of the subject claim.
sasl.oauthbearer.token.endpoint.url string null medium inert
    URL of the token endpoint.
sasl.oauthbearer.jwks.endpoint.url string null medium
    URL of the keys that verify tokens.
sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000 low
    Milliseconds between refreshes of those keys.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100 low inert
    Initial pause in milliseconds before a failed refresh is retried.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000 low inert
    Maximum such pause in milliseconds.
sasl.oauthbearer.clock.skew.seconds int 30 low
    Allowed clock difference to the identity provider, in seconds.
sasl.oauthbearer.expected.audience list "" high list
    Accepted audiences of a token.
sasl.oauthbearer.expected.issuer string null high
    Required issuer of a token.
delegation.token.secret.key password null medium
    Secret that signs delegation tokens.
delegation.token.max.lifetime.ms long 604800000 medium >=1
    Milliseconds after which a delegation token cannot be renewed.
delegation.token.expiry.time.ms long 86400000 medium >=1
    Milliseconds that a delegation token is valid before it must be renewed.
delegation.token.expiry.check.interval.ms long 3600000 low >=1
    Milliseconds between checks for expired delegation tokens.
remote.log.storage.system.enable boolean false medium refused:tiered
    Enable tiered storage on this broker.
remote.log.storage.manager.impl.prefix string rsm.config. medium nonempty inert
    Prefix of the keys passed to the remote storage plug-in.
remote.log.metadata.manager.impl.prefix string rlmm.config. medium nonempty inert
    Prefix of the keys passed to the remote metadata plug-in.
remote.log.storage.manager.class.name string null medium nonempty inert
    Class of the remote storage plug-in.
remote.log.storage.manager.class.path string null medium inert
    Class path of the remote storage plug-in.
remote.log.metadata.manager.class.name string \
org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager medium nonempty inert
    Class of the remote metadata plug-in.
remote.log.metadata.manager.class.path string null medium inert
    Class path of the remote metadata plug-in.
remote.log.metadata.manager.listener.name string null medium nonempty inert
    Listener that the remote metadata plug-in connects to.
remote.log.metadata.custom.metadata.max.bytes int 128 low >=0 inert
    Maximum custom metadata in bytes that the remote storage plug-in may add to a segment.
remote.log.index.file.cache.total.size.bytes long 1073741824 low >=1 cluster-wide inert
    Disk space in bytes for cached indexes of remote segments.
remote.log.index.file.cache.ttl.ms long 900000 low >=-1 internal inert
    Milliseconds that an unused cached remote index is kept.
remote.log.manager.thread.pool.size int 2 medium >=1 inert
    Threads of remote log tasks.
remote.log.manager.copier.thread.pool.size int 10 medium >=1 cluster-wide inert
    Threads that copy segments to remote storage.
remote.log.manager.expiration.thread.pool.size int 10 medium >=1 cluster-wide inert
    Threads that remove expired remote segments.
remote.log.manager.follower.thread.pool.size int 2 medium >=1 cluster-wide inert
    Threads that read remote metadata for followers.
remote.log.manager.task.interval.ms long 30000 low >=1 inert
    Milliseconds between runs of a remote log task.
remote.log.manager.task.retry.backoff.ms long 500 low >=1 internal inert
    Initial pause in milliseconds before a remote log task is retried.
remote.log.manager.task.retry.backoff.max.ms long 30000 low >=1 internal inert
    Maximum pause in milliseconds before a remote log task is retried.
remote.log.manager.task.retry.jitter double 0.2 low 0..0.5 internal inert
    Random jitter of that pause, as a fraction.
remote.log.reader.threads int 10 medium >=1 cluster-wide inert
    Threads that read remote segments for fetches.
remote.log.reader.max.pending.tasks int 100 medium >=1 inert
    Maximum queued remote reads; further ones are rejected.
log.local.retention.ms long -2 medium >=-2 cluster-wide inert
    Default of local.retention.ms for topics.
log.local.retention.bytes long -2 medium >=-2 cluster-wide inert
    Default of local.retention.bytes for topics.
remote.log.manager.copy.max.bytes.per.second long 9223372036854775807 medium >=1 cluster-wide inert
    Bytes per second that may be copied to remote storage.
remote.log.manager.copy.quota.window.num int 11 medium >=1 inert
    Samples kept to measure the copy rate.
remote.log.manager.copy.quota.window.size.seconds int 1 medium >=1 inert
    Length in seconds of a sample of the copy rate.
remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807 medium >=1 cluster-wide inert
    Bytes per second that may be read from remote storage.
remote.log.manager.fetch.quota.window.num int 11 medium >=1 inert
    Samples kept to measure the remote fetch rate.
remote.log.manager.fetch.quota.window.size.seconds int 1 medium >=1 inert
    Length in seconds of a sample of the remote fetch rate.
remote.fetch.max.wait.ms int 500 medium >=1 cluster-wide inert
    Milliseconds that a fetch waits for remote data.
remote.list.offsets.request.timeout.ms long 30000 medium >=1 cluster-wide inert
    Milliseconds that an offset lookup waits for remote storage.
"""
