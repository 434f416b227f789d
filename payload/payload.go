// Package payload is what generated payload types are made of: Date, the checks of their Validate methods, and the
// masking of sensitive values. Producers and consumers share it; it imports the standard library alone.
package payload

import "errors"

// ErrInvalid: a payload breaks a rule of its YAML, or holds what jsonb cannot. outbox.ErrPayloadInvalid and
// consume.ErrInvalidPayload are this error.
var ErrInvalid = errors.New("invalid payload")
