// Package orderpb has the Protobuf messages of the orders. Producer and consumers share order.proto. After a change of it,
// generate order.pb.go:
//
//	protoc --go_out=. --go_opt=paths=source_relative order.proto
package orderpb

// ContentType is that of the messages of this package.
const ContentType = "application/protobuf"
