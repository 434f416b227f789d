// Package events holds the topics of the benchmark. The code is generated from outbox.yaml.
package events

//go:generate go tool outboxgen generate
