// Package events declares the events of this service in outbox.yaml, and contains the code that outboxgen
// generates from it. Its sub-folder orderevents is for services that consume them.
package events

//go:generate go tool outboxgen generate
