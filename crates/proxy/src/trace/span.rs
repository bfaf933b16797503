//! Converts an ended request into spans. Names and attributes follow OpenTelemetry's semantic conventions for
//! HTTP and RPC (1.30); the balancer's own begin with `plimsoll.`.

use plimsoll_brain::Time;
use plimsoll_wire::otlp::{HAS_REMOTE, KeyValue, Kind, REMOTE, SAMPLED, Span, Status};

use super::Traced;
use crate::account::Try;
use crate::grpc::Call;

/// The methods with a name of their own; clients may send any number of others.
const METHODS: [&str; 9] = ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];

impl Traced {
    /// Returns the spans: that of the request first, then one for each attempt at a member.
    pub fn spans(&self) -> Vec<Span> {
        let tries = self.tries.iter().enumerate().map(|(number, one)| self.client_span(number, one));
        std::iter::once(self.server_span()).chain(tries).collect()
    }

    fn server_span(&self) -> Span {
        let mut attributes = self.method();
        attributes.extend([
            KeyValue::new("url.scheme", self.scheme),
            KeyValue::new("url.path", &*self.asked.path),
            KeyValue::new("network.protocol.name", "http"),
            KeyValue::new("network.protocol.version", self.version),
            KeyValue::new("client.address", &*self.client),
            KeyValue::new("plimsoll.group", &*self.group),
            KeyValue::new("plimsoll.retries", self.tries.len().saturating_sub(1) as i64),
        ]);
        let (host, port) = split(&self.asked.host);
        if !host.is_empty() {
            attributes.push(KeyValue::new("server.address", host));
        }
        attributes.extend(port.map(|port| KeyValue::new("server.port", i64::from(port))));
        if !self.asked.agent.is_empty() {
            attributes.push(KeyValue::new("user_agent.original", &*self.asked.agent));
        }
        attributes.extend(self.rpc());
        if let Some(first) = self.tries.first() {
            let waited = first.begun.since(self.begun).as_secs_f64();
            attributes.push(KeyValue::new("plimsoll.wait_seconds", waited));
        }
        if let Some(last) = self.tries.last() {
            attributes.extend([
                KeyValue::new("plimsoll.member", &*last.member),
                KeyValue::new("plimsoll.strategy", last.strategy),
                KeyValue::new("plimsoll.choice", last.choice.label()),
            ]);
        }
        attributes.extend(self.reason.map(|reason| KeyValue::new("plimsoll.reason", reason)));
        let error = self.ended_with();
        if self.status > 0 {
            attributes.push(KeyValue::new("http.response.status_code", i64::from(self.status)));
        }
        attributes.extend(error.as_deref().map(|error| KeyValue::new("error.type", error)));
        Span {
            span_id: self.span.to_vec(),
            parent_span_id: self.parent.map_or_else(Vec::new, |parent| parent.to_vec()),
            kind: Kind::Server.into(),
            attributes,
            status: error.map(|_| Status::error(self.reason.unwrap_or_default())),
            flags: SAMPLED | HAS_REMOTE | if self.parent.is_some() { REMOTE } else { 0 },
            ..self.span(self.begun, self.ended)
        }
    }

    fn client_span(&self, number: usize, one: &Try) -> Span {
        let mut attributes = self.method();
        attributes.extend([
            KeyValue::new("server.address", one.address.ip().to_string()),
            KeyValue::new("server.port", i64::from(one.address.port())),
            KeyValue::new("url.path", &*self.asked.path),
            KeyValue::new("plimsoll.group", &*self.group),
            KeyValue::new("plimsoll.member", &*one.member),
            KeyValue::new("plimsoll.strategy", one.strategy),
            KeyValue::new("plimsoll.choice", one.choice.label()),
        ]);
        let figure = |(name, value): &(&str, f64)| KeyValue::new(format!("plimsoll.figure.{name}"), *value);
        attributes.extend(one.figures.iter().map(figure));
        if number > 0 {
            attributes.push(KeyValue::new("http.request.resend_count", number as i64));
        }
        attributes.extend(self.rpc().into_iter().filter(|_| one.failed.is_none()));
        let error = match one.failed {
            Some((_, why)) => Some(why.to_owned()),
            None => {
                if self.status > 0 {
                    attributes.push(KeyValue::new("http.response.status_code", i64::from(self.status)));
                }
                // For a client, a response of 4xx is an error.
                self.ended_with().or_else(|| (self.status >= 400).then(|| self.status.to_string()))
            }
        };
        attributes.extend(error.as_deref().map(|error| KeyValue::new("error.type", error)));
        let ended = one.failed.map_or(self.ended, |(at, _)| at);
        Span {
            span_id: one.span.to_vec(),
            parent_span_id: self.span.to_vec(),
            kind: Kind::Client.into(),
            attributes,
            status: error.map(|error| Status::error(one.failed.map_or("", |_| &error))),
            flags: SAMPLED | HAS_REMOTE,
            ..self.span(one.begun, ended)
        }
    }

    /// Returns the common part of all spans.
    fn span(&self, begun: Time, ended: Time) -> Span {
        let unix = |at: Time| {
            let before = u64::try_from(self.ended.since(at).as_nanos()).unwrap_or(u64::MAX);
            self.unix_nanos.saturating_sub(before)
        };
        let name = match (&self.call, named(&self.asked.method)) {
            (Some(_), _) => self.asked.path.trim_start_matches('/'),
            (None, Some(method)) => method,
            (None, None) => "HTTP",
        };
        Span {
            trace_id: self.trace.to_vec(),
            trace_state: self.state.clone(),
            name: name.to_owned(),
            start_time_unix_nano: unix(begun),
            end_time_unix_nano: unix(ended),
            ..Span::default()
        }
    }

    fn method(&self) -> Vec<KeyValue> {
        let said = &*self.asked.method;
        match named(said) {
            Some(method) => vec![KeyValue::new("http.request.method", method)],
            None => vec![
                KeyValue::new("http.request.method", "_OTHER"),
                KeyValue::new("http.request.method_original", said),
            ],
        }
    }

    fn rpc(&self) -> Vec<KeyValue> {
        let Some(call) = &self.call else { return Vec::new() };
        let (service, method) = self.asked.path.trim_start_matches('/').split_once('/').unwrap_or_default();
        let mut attributes = vec![
            KeyValue::new("rpc.system", "grpc"),
            KeyValue::new("rpc.service", service),
            KeyValue::new("rpc.method", method),
        ];
        attributes.extend(call.status.map(|status| KeyValue::new("rpc.grpc.status_code", i64::from(status))));
        attributes
    }

    /// Returns the type of the error, if the request failed.
    fn ended_with(&self) -> Option<String> {
        match (self.reason, self.status) {
            (Some(reason), 500..) => Some(reason.to_owned()),
            (_, 0) => Some(
                self.tries.last().and_then(|last| last.failed).map_or("broken_off", |it| it.1).to_owned(),
            ),
            (_, 500..) => Some(self.status.to_string()),
            _ => self.call.filter(Call::failed).and_then(|call| call.status).map(|status| status.to_string()),
        }
    }
}

fn named(method: &str) -> Option<&'static str> {
    METHODS.into_iter().find(|name| *name == method)
}

/// Splits a host and a port, if there is one.
fn split(host: &str) -> (&str, Option<u16>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()),
        _ => (host, None),
    }
}
