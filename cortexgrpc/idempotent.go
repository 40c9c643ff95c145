package cortexgrpc

import (
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// DeclaredIdempotent reports whether the proto of a method (/package.Service/Method), as linked into this program, says that it may
// be made twice with the effect of once:
//
//	rpc GetBalance(…) returns (…) { option idempotency_level = NO_SIDE_EFFECTS; }  // or IDEMPOTENT
//
// It is the default of ClientConfig.Repeatable.
func DeclaredIdempotent(method string) bool {
	service, name := splitMethod(method)
	if service == "" {
		return false
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + name))
	if err != nil {
		return false
	}
	o, ok := d.Options().(*descriptorpb.MethodOptions)
	return ok && o.GetIdempotencyLevel() != descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN
}
