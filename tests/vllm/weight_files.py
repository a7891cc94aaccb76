"""A backend for vLLM's weight transfer that reads files: vLLM's own need GPUs."""

BACKEND = "files"


def register():
    """In the process of the worker."""
    from dataclasses import dataclass

    from safetensors.torch import load_file
    from vllm.distributed.weight_transfer import base
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.model_loader import reload

    @dataclass
    class Init(base.WeightTransferInitInfo):
        pass

    @dataclass
    class Update(base.WeightTransferUpdateInfo):
        file: str

    class Files(base.WeightTransferEngine):
        init_info_cls = Init
        update_info_cls = Update

        def init_transfer_engine(self, init_info):
            pass

        def start_weight_update(self):
            reload.initialize_layerwise_reload(self.model)

        def update_weights(self, update_info):
            self.receive_weights(self.parse_update_info(update_info))

        def receive_weights(self, update_info):
            self.model.load_weights(load_file(update_info.file).items())

        def finish_weight_update(self):
            reload.finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self):
            pass

    WeightTransferEngineFactory.register_engine(BACKEND, Files)
