//! Converts an ended request into spans. Names and attributes follow OpenTelemetry's semantic conventions for
//! HTTP and RPC (1.30); the balancer's own begin with `plimsoll.`.

use plimsoll_brain::Time;
use plimsoll_wire::otlp::{HAS_REMOTE, OtlpKeyValue, REMOTE, SAMPLED, Span, SpanKind, SpanStatus};

use super::FinishedTrace;
use crate::net::grpc::GrpcCall;
use crate::upstream::request_record::RequestAttempt;

/// The methods with a name of their own; clients may send any number of others.
const METHODS: [&str; 9] = ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];

impl FinishedTrace {
    /// Returns the spans: that of the request first, then one for each attempt at a member.
    pub fn spans(&self) -> Vec<Span> {
        let client_spans =
            self.attempts.iter().enumerate().map(|(number, attempt)| self.client_span(number, attempt));
        std::iter::once(self.server_span()).chain(client_spans).collect()
    }

    fn server_span(&self) -> Span {
        let mut attributes = self.method();
        attributes.extend([
            OtlpKeyValue::new("url.scheme", self.scheme),
            OtlpKeyValue::new("url.path", &*self.request.path),
            OtlpKeyValue::new("network.protocol.name", "http"),
            OtlpKeyValue::new("network.protocol.version", self.version),
            OtlpKeyValue::new("client.address", &*self.client),
            OtlpKeyValue::new("plimsoll.group", &*self.group),
            OtlpKeyValue::new("plimsoll.retries", self.attempts.len().saturating_sub(1) as i64),
        ]);
        let (host, port) = split_host(&self.request.host);
        if !host.is_empty() {
            attributes.push(OtlpKeyValue::new("server.address", host));
        }
        attributes.extend(port.map(|port| OtlpKeyValue::new("server.port", i64::from(port))));
        if !self.request.agent.is_empty() {
            attributes.push(OtlpKeyValue::new("user_agent.original", &*self.request.agent));
        }
        attributes.extend(self.rpc());
        if let Some(first) = self.attempts.first() {
            let wait_seconds = first.begun.since(self.started_at).as_secs_f64();
            attributes.push(OtlpKeyValue::new("plimsoll.wait_seconds", wait_seconds));
        }
        if let Some(last) = self.attempts.last() {
            attributes.extend([
                OtlpKeyValue::new("plimsoll.member", &*last.member),
                OtlpKeyValue::new("plimsoll.strategy", last.strategy),
                OtlpKeyValue::new("plimsoll.choice", last.choice.label()),
            ]);
        }
        attributes.extend(self.reason.map(|reason| OtlpKeyValue::new("plimsoll.reason", reason)));
        let error = self.error_type();
        if self.status > 0 {
            attributes.push(OtlpKeyValue::new("http.response.status_code", i64::from(self.status)));
        }
        attributes.extend(error.as_deref().map(|error| OtlpKeyValue::new("error.type", error)));
        Span {
            span_id: self.span.to_vec(),
            parent_span_id: self.parent.map_or_else(Vec::new, |parent| parent.to_vec()),
            kind: SpanKind::Server.into(),
            attributes,
            status: error.map(|_| SpanStatus::error(self.reason.unwrap_or_default())),
            flags: SAMPLED | HAS_REMOTE | if self.parent.is_some() { REMOTE } else { 0 },
            ..self.span(self.started_at, self.ended_at)
        }
    }

    fn client_span(&self, number: usize, attempt: &RequestAttempt) -> Span {
        let mut attributes = self.method();
        attributes.extend([
            OtlpKeyValue::new("server.address", attempt.address.ip().to_string()),
            OtlpKeyValue::new("server.port", i64::from(attempt.address.port())),
            OtlpKeyValue::new("url.path", &*self.request.path),
            OtlpKeyValue::new("plimsoll.group", &*self.group),
            OtlpKeyValue::new("plimsoll.member", &*attempt.member),
            OtlpKeyValue::new("plimsoll.strategy", attempt.strategy),
            OtlpKeyValue::new("plimsoll.choice", attempt.choice.label()),
        ]);
        let attribute =
            |(name, value): &(&str, f64)| OtlpKeyValue::new(format!("plimsoll.figure.{name}"), *value);
        attributes.extend(attempt.figures.iter().map(attribute));
        if number > 0 {
            attributes.push(OtlpKeyValue::new("http.request.resend_count", number as i64));
        }
        attributes.extend(self.rpc().into_iter().filter(|_| attempt.failure.is_none()));
        let error = match attempt.failure {
            Some((_, reason)) => Some(reason.to_owned()),
            None => {
                if self.status > 0 {
                    attributes.push(OtlpKeyValue::new("http.response.status_code", i64::from(self.status)));
                }
                // For a client, a response of 4xx is an error.
                self.error_type().or_else(|| (self.status >= 400).then(|| self.status.to_string()))
            }
        };
        attributes.extend(error.as_deref().map(|error| OtlpKeyValue::new("error.type", error)));
        let ended_at = attempt.failure.map_or(self.ended_at, |(failed_at, _)| failed_at);
        Span {
            span_id: attempt.span.to_vec(),
            parent_span_id: self.span.to_vec(),
            kind: SpanKind::Client.into(),
            attributes,
            status: error.map(|error| SpanStatus::error(attempt.failure.map_or("", |_| &error))),
            flags: SAMPLED | HAS_REMOTE,
            ..self.span(attempt.begun, ended_at)
        }
    }

    /// Returns the common part of all spans.
    fn span(&self, started_at: Time, ended_at: Time) -> Span {
        let unix_nanos = |time: Time| {
            let nanos_before_end = u64::try_from(self.ended_at.since(time).as_nanos()).unwrap_or(u64::MAX);
            self.unix_nanos.saturating_sub(nanos_before_end)
        };
        let name = match (&self.call, known_method(&self.request.method)) {
            (Some(_), _) => self.request.path.trim_start_matches('/'),
            (None, Some(method)) => method,
            (None, None) => "HTTP",
        };
        Span {
            trace_id: self.trace.to_vec(),
            trace_state: self.state.clone(),
            name: name.to_owned(),
            start_time_unix_nano: unix_nanos(started_at),
            end_time_unix_nano: unix_nanos(ended_at),
            ..Span::default()
        }
    }

    fn method(&self) -> Vec<OtlpKeyValue> {
        let method_name = &*self.request.method;
        match known_method(method_name) {
            Some(method) => vec![OtlpKeyValue::new("http.request.method", method)],
            None => vec![
                OtlpKeyValue::new("http.request.method", "_OTHER"),
                OtlpKeyValue::new("http.request.method_original", method_name),
            ],
        }
    }

    fn rpc(&self) -> Vec<OtlpKeyValue> {
        let Some(call) = &self.call else { return Vec::new() };
        let (service, method) = self.request.path.trim_start_matches('/').split_once('/').unwrap_or_default();
        let mut attributes = vec![
            OtlpKeyValue::new("rpc.system", "grpc"),
            OtlpKeyValue::new("rpc.service", service),
            OtlpKeyValue::new("rpc.method", method),
        ];
        attributes
            .extend(call.status.map(|status| OtlpKeyValue::new("rpc.grpc.status_code", i64::from(status))));
        attributes
    }

    /// Returns the type of the error, if the request failed.
    fn error_type(&self) -> Option<String> {
        match (self.reason, self.status) {
            (Some(reason), 500..) => Some(reason.to_owned()),
            (_, 0) => Some(
                self.attempts.last().and_then(|last| last.failure).map_or("broken_off", |it| it.1).to_owned(),
            ),
            (_, 500..) => Some(self.status.to_string()),
            _ => self
                .call
                .filter(GrpcCall::is_member_failure)
                .and_then(|call| call.status)
                .map(|status| status.to_string()),
        }
    }
}

fn known_method(method: &str) -> Option<&'static str> {
    METHODS.into_iter().find(|name| *name == method)
}

/// Splits a host and a port, if there is one.
fn split_host(host: &str) -> (&str, Option<u16>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()),
        _ => (host, None),
    }
}
