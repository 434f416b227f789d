// Package webhookkey decodes the secrets of Standard Webhooks
// (https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md), for the publisher and
// the receiver.
package webhookkey

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// Lengths of a decoded secret that Standard Webhooks allows.
const (
	minBytes = 24
	maxBytes = 64
)

const howToMake = "make one with: openssl rand -base64 32"

// Decode returns the key of a secret. Its error says what is wrong and how to make a secret. It does not quote the
// secret.
func Decode(secret string) ([]byte, error) {
	switch {
	case strings.TrimSpace(strings.TrimPrefix(secret, "whsec_")) == "":
		return nil, errors.New("is empty: set it, for example the environment variable that it comes from; " + howToMake)
	case strings.HasPrefix(secret, "whpk_"), strings.HasPrefix(secret, "whsk_"):
		return nil, errors.New("is an asymmetric key, which is not supported: use a secret that begins with whsec_")
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	switch {
	case err != nil:
		return nil, errors.New("is not base64: " + howToMake)
	case len(key) < minBytes || len(key) > maxBytes:
		return nil, fmt.Errorf("has %d bytes in base64: use %d to %d bytes; %s", len(key), minBytes, maxBytes, howToMake)
	}
	return key, nil
}
