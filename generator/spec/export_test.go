package spec

import (
	"bytes"
	"fmt"
	"strconv"
)

// FindSlip returns where findSlip sees something wrong, and what; "" when it sees nothing.
func FindSlip(source []byte) string {
	if s, ok := findSlip(source); ok {
		return fmt.Sprintf("%d:%d: %s", s.line, s.column, s.what)
	}
	return ""
}

// JSONValue returns the only document of source as encoding/json would give it, for tests of the schema.
func JSONValue(source []byte) (any, error) {
	var document node
	if err := newParser(bytes.NewReader(source)).Decode(&document); err != nil {
		return nil, err
	}
	return jsonValue(document.Content[0]), nil
}

func jsonValue(n *node) any {
	switch n.Kind {
	case mappingNode:
		object := make(map[string]any)
		for i := 0; i < len(n.Content); i += 2 {
			object[n.Content[i].Value] = jsonValue(n.Content[i+1])
		}
		return object
	case sequenceNode:
		list := []any{}
		for _, child := range n.Content {
			list = append(list, jsonValue(child))
		}
		return list
	}
	switch n.Tag {
	case intTag, floatTag:
		v, _ := strconv.ParseFloat(n.Value, 64)
		return v
	case boolTag:
		return n.Value == "true"
	case nullTag:
		return nil
	}
	return n.Value
}
