// Package events declares the events of this service in outbox.yaml and holds what outboxgen
// generates from it. Its sub-folder userevents is for the services that consume them.
package events

//go:generate go tool outboxgen generate
