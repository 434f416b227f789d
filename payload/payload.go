// Package payload has what generated payload types need: the type Date, the checks of their Validate methods, and the
// masking of sensitive values. Producers and consumers share it. It imports only the standard library.
//
// Most users meet three things of it. Date is the type of payload fields of type date. A *ValidationError, which wraps
// ErrInvalid, lists every field that breaks a rule of the YAML, and never a value:
//
//	var broken *payload.ValidationError
//	if errors.As(err, &broken) {
//		for _, f := range broken.Fields {
//			fmt.Println(f.Field, f.Rule, f.Message)
//		}
//	}
//
// ParseEnum reads a value of a generated enum. The other functions are checks that generated code calls. Each check
// returns nil for a valid value, and does not put the value into a message.
package payload

import "errors"

// ErrInvalid: a payload breaks a rule of its YAML, or contains something that jsonb cannot store.
// outbox.ErrPayloadInvalid and consume.ErrInvalidPayload are this error.
var ErrInvalid = errors.New("invalid payload")
