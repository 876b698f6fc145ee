"""Models for other run-times: students for ONNX Runtime, teachers for CTranslate2. Nothing here trains or searches."""
