package cortexgrpc_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	_ "google.golang.org/protobuf/types/known/emptypb"

	"github.com/seed-a29ca62a/cortex/cortexgrpc"
)

func TestDeclaredIdempotent(t *testing.T) {
	method := func(name string, level *descriptorpb.MethodOptions_IdempotencyLevel) *descriptorpb.MethodDescriptorProto {
		m := &descriptorpb.MethodDescriptorProto{Name: proto.String(name), InputType: proto.String(".google.protobuf.Empty"),
			OutputType: proto.String(".google.protobuf.Empty")}
		if level != nil {
			m.Options = &descriptorpb.MethodOptions{IdempotencyLevel: level}
		}
		return m
	}
	f, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("cortexgrpc_test.proto"), Package: proto.String("cortex.test.declared"),
		Dependency: []string{"google/protobuf/empty.proto"}, Syntax: proto.String("proto3"),
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("Wallet"), Method: []*descriptorpb.MethodDescriptorProto{
			method("Pay", nil),
			method("Get", descriptorpb.MethodOptions_NO_SIDE_EFFECTS.Enum()),
			method("Put", descriptorpb.MethodOptions_IDEMPOTENT.Enum()),
			method("Odd", descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN.Enum()),
		}}}}, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := protoregistry.GlobalFiles.FindFileByPath(f.Path()); err != nil { // -count
		if err := protoregistry.GlobalFiles.RegisterFile(f); err != nil {
			t.Fatal(err)
		}
	}
	for m, want := range map[string]bool{
		"/cortex.test.declared.Wallet/Get": true, "/cortex.test.declared.Wallet/Put": true,
		"/cortex.test.declared.Wallet/Pay": false, "/cortex.test.declared.Wallet/Odd": false,
		"/cortex.test.declared.Wallet/None": false, "/google.protobuf/Empty": false, "": false, "/": false, "//": false, "Get": false,
		"/a/b/c": false, "/cortex.test.declared.Wallet/": false, "/./.": false, "/\xff/\xff": false,
	} {
		if got := cortexgrpc.DeclaredIdempotent(m); got != want {
			t.Errorf("%q: %v", m, got)
		}
	}
}
