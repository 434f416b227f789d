package pgvalue

import "encoding/json"

// Headers decodes the headers of a row. They may have been written by hand. A value that is not text is left out,
// because the event matters more than its headers.
func Headers(column []byte) map[string]string {
	if column == nil {
		return nil
	}
	var headers map[string]string
	if json.Unmarshal(column, &headers) == nil {
		return headers
	}
	var mixed map[string]any
	if json.Unmarshal(column, &mixed) != nil {
		return nil
	}
	headers = make(map[string]string, len(mixed))
	for name, value := range mixed {
		if text, ok := value.(string); ok {
			headers[name] = text
		}
	}
	return headers
}
