// Package promtest checks the alerts and the dashboard of outboxgen export against a running /metrics, with the parser of
// Prometheus. It has tests only, in a separate module, because that parser has many dependencies.
package promtest
